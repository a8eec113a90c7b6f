"""The results as Markdown tables."""

import statistics
from collections.abc import Callable

from benchmarks.peers.architectures import ARCHITECTURES
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.results import Measurement, Outcome, Run, geometric_mean
from benchmarks.peers.workload import SETTINGS

OURS = ("precast", "precast-frozen", "precast-step")
"""What a ratio counts as Precast: the fastest of them."""
PEERS = tuple(name for name, contender in CONTENDERS.items() if not contender.is_ours)


def all_tables(run: Run) -> str:
    """Times, ratios, first results, memory and errors, one section a setting."""
    settings = [name for name in SETTINGS if any(outcome.setting == name for outcome in run.outcomes)]
    return "\n\n".join(_section(run, setting) for setting in settings)


def summary_table(run: Run) -> str:
    """One row an architecture: Precast beside the fastest of the others."""
    settings = [name for name in SETTINGS if any(outcome.setting == name for outcome in run.outcomes)]
    rows = []
    for name, architecture in ARCHITECTURES.items():
        outcomes = {each.setting: each for each in run.outcomes if each.architecture == name}
        if outcomes:
            rows.append([architecture.title, *(_versus_fastest(outcomes.get(setting)) for setting in settings)])
    return markdown(["", *(SETTINGS[setting].title for setting in settings)], rows)


def fastest(outcome: Outcome, names: tuple[str, ...]) -> tuple[str, float] | None:
    """The quickest of these contenders and its seconds."""
    found = [(name, seconds) for name in names if (seconds := outcome.seconds(name)) is not None]
    return min(found, key=lambda pair: pair[1], default=None)


def ratio_to_peers(outcome: Outcome, peers: tuple[str, ...] = PEERS) -> float | None:
    """How many times as fast as the fastest of the peers we are; below 1 we lose."""
    ours, theirs = fastest(outcome, OURS), fastest(outcome, peers)
    return theirs[1] / ours[1] if ours and theirs else None


def _section(run: Run, setting: str) -> str:
    outcomes = [outcome for outcome in run.outcomes if outcome.setting == setting]
    present = [name for name in CONTENDERS if any(outcome.of(name) for outcome in outcomes)]
    parts = [
        f"### {SETTINGS[setting].title}",
        "Milliseconds a call:",
        _times(outcomes, present),
        _mean_line(outcomes),
        _spread_line(outcomes),
        "Seconds to the first result, nothing cached:",
        _grid(outcomes, present, lambda each: each.first_result_seconds, "{:.1f}"),
        *_warm_results(outcomes, present),
        "Peak memory while running, MiB:",
        _grid(outcomes, present, lambda each: None if each.peak_bytes is None else each.peak_bytes / 2**20, "{:.0f}"),
        "Error to float64, as a multiple of eager's own:",
        _errors(outcomes, present),
        _failures(outcomes),
    ]
    return "\n\n".join(part for part in parts if part)


def _times(outcomes: list[Outcome], names: list[str]) -> str:
    rows = []
    for outcome in outcomes:
        best = fastest(outcome, tuple(CONTENDERS))
        cells = [_time(outcome, name, is_best=best is not None and best[0] == name) for name in names]
        ratio = ratio_to_peers(outcome)
        rows.append([ARCHITECTURES[outcome.architecture].title, *cells, "" if ratio is None else f"{ratio:.2f}x"])
    return markdown(["", *(CONTENDERS[name].title for name in names), "Precast to the fastest peer"], rows)


def _time(outcome: Outcome, name: str, *, is_best: bool) -> str:
    seconds = outcome.seconds(name)
    if seconds is None:
        return "failed" if outcome.of(name) else "-"
    return f"**{milliseconds(seconds)}**" if is_best else milliseconds(seconds)


def milliseconds(seconds: float) -> str:
    """As tables show them."""
    return f"{seconds * 1000:.1f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def _grid(outcomes: list[Outcome], names: list[str], value: Callable[[Measurement], float | None], form: str) -> str:
    rows = []
    for outcome in outcomes:
        found = [value(measurement) if (measurement := outcome.of(name)) else None for name in names]
        texts = ["-" if each is None else form.format(each) for each in found]
        rows.append([ARCHITECTURES[outcome.architecture].title, *texts])
    return markdown(["", *(CONTENDERS[name].title for name in names)], rows)


def _errors(outcomes: list[Outcome], names: list[str]) -> str:
    """The ratio of errors; eager's column has its error itself."""
    rows = []
    for outcome in outcomes:
        eager = outcome.of("eager")
        own = eager.error if eager else None
        cells = []
        for name in names:
            error = measurement.error if (measurement := outcome.of(name)) else None
            if error is None:
                cells.append("-")
            elif name == "eager" or not own:
                cells.append(f"{error:.1e}")
            else:
                cells.append(f"{error / own:.2f}")
        rows.append([ARCHITECTURES[outcome.architecture].title, *cells])
    return markdown(["", *(CONTENDERS[name].title for name in names)], rows)


def _mean_line(outcomes: list[Outcome]) -> str:
    against = {"the fastest peer": PEERS, "eager": ("eager",), "torch.compile": ("compile", "compile-frozen")}
    parts = []
    for title, peers in against.items():
        ratios = [ratio for outcome in outcomes if (ratio := ratio_to_peers(outcome, peers)) is not None]
        mean = geometric_mean(ratios)
        if mean is not None:
            parts.append(f"{mean:.2f}x {title}")
    return f"Geometric mean: Precast is {', '.join(parts)}." if parts else ""


def _warm_results(outcomes: list[Outcome], names: list[str]) -> list[str]:
    if not any(each.warm_result_seconds for outcome in outcomes for each in outcome.measurements):
        return []
    grid = _grid(outcomes, names, lambda each: each.warm_result_seconds, "{:.2f}")
    return ["Seconds to the first result of a new process, with the caches or the exported file of the first:", grid]


def _spread_line(outcomes: list[Outcome]) -> str:
    merged = [each for outcome in outcomes for each in outcome.measurements if len(each.runs) > 1]
    if not merged:
        return ""
    count, spreads = max(len(each.runs) for each in merged), [each.spread for each in merged]
    middle, most = statistics.median(spreads), max(spreads)
    return f"Medians of {count} runs, which differ by {middle:.1%} (median), {most:.1%} (most)."


def _failures(outcomes: list[Outcome]) -> str:
    lines = [
        f"- {ARCHITECTURES[outcome.architecture].title}, {CONTENDERS[each.contender].title}: {each.failure}"
        for outcome in outcomes
        for each in outcome.measurements
        if each.failure
    ]
    return "\n".join(["Failed:", "", *lines]) if lines else ""


def _versus_fastest(outcome: Outcome | None) -> str:
    ours = outcome and fastest(outcome, OURS)
    theirs = outcome and fastest(outcome, PEERS)
    if not ours or not theirs:
        return "-"
    title = CONTENDERS[theirs[0]].title
    return f"{milliseconds(ours[1])} ms; {title} {milliseconds(theirs[1])} ms; {theirs[1] / ours[1]:.2f}x"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is of words and whose others are of numbers."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
