"""A profile as a table: steps that do the same for the same line are one row, the costliest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precast.report.graph_explanation import kind_of_graph

if TYPE_CHECKING:
    from precast.report.profile import StepProfile
    from precast.report.roofline import Roofline

_MOST_ROWS = 30
_WIDEST = 44
_HEADER = ("ms", "share", "times", "kind", "operators", "MB", "MFLOP", "GFLOP/s", "GB/s", "roofline", "line")
_ALIGNED_LEFT = {"kind", "operators", "line"}


def table_of(steps: Sequence[StepProfile], roofline: Roofline) -> str:
    """One table a graph, and what the machine can do at most."""
    graphs: dict[str, list[StepProfile]] = defaultdict(list)
    for step in steps:
        graphs[step.graph].append(step)
    parts = [_graph_table(name, own, roofline) for name, own in graphs.items()]
    threads = "1 thread" if roofline.threads == 1 else f"{roofline.threads} threads"
    peak = (
        f"roofline with {threads}: {roofline.flops_a_second / 1e9:.0f} GFLOP/s, "
        f"{roofline.bytes_a_second / 1e9:.1f} GB/s; more than 100% means that data stayed in a cache"
    )
    return "\n\n".join([*parts, peak])


def _graph_table(name: str, steps: Sequence[StepProfile], roofline: Roofline) -> str:
    total = sum(step.seconds for step in steps)
    groups = sorted(_grouped(steps), key=lambda group: -sum(step.seconds for step in group))
    rows = [_row(group, total, roofline) for group in groups[:_MOST_ROWS]]
    calls = max((step.time.calls for step in steps), default=0)
    head = f"{kind_of_graph(name)} graph: {total * 1000:.3f} ms in {len(steps)} steps, the best of {calls} calls"
    rest = groups[_MOST_ROWS:]
    seconds = sum(step.seconds for group in rest for step in group)
    more = [f"  … {len(rest)} more rows, {seconds * 1000:.3f} ms"] if rest else []
    return "\n".join([head, *_aligned([_HEADER, *rows]), *more])


def _grouped(steps: Iterable[StepProfile]) -> Iterable[list[StepProfile]]:
    groups: dict[tuple[object, ...], list[StepProfile]] = defaultdict(list)
    for step in steps:
        cost = step.cost
        groups[cost.kind, cost.operators, cost.lines, cost.moved, cost.flops].append(step)
    return groups.values()


def _row(group: Sequence[StepProfile], total: float, roofline: Roofline) -> tuple[str, ...]:
    seconds, cost = sum(step.seconds for step in group), group[0].cost
    moved, flops = cost.moved * len(group), cost.flops * len(group)
    speed = seconds or float("inf")
    return (
        f"{seconds * 1000:.3f}",
        f"{seconds / total:.1%}" if total else "-",
        str(sum(step.cost.times for step in group)),
        cost.kind,
        _shortened(", ".join(cost.operators) or cost.name),
        f"{moved / 1e6:.2f}",
        f"{flops / 1e6:.2f}",
        f"{flops / speed / 1e9:.1f}",
        f"{moved / speed / 1e9:.1f}",
        f"{roofline.shortest_seconds(flops, moved) / speed:.0%}",
        _place(cost.lines),
    )


def _place(lines: Sequence[str]) -> str:
    """The last line, by its file's name alone, and how many others there are."""
    if not lines:
        return ""
    path, is_line, rest = lines[-1].partition(":")
    others = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"{Path(path).name}:{rest.partition(' ')[0]}{others}" if is_line else f"{lines[-1]}{others}"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(_cell(*each) for each in zip(row, widths, _HEADER, strict=True)).rstrip() for row in rows]


def _cell(text: str, width: int, column: str) -> str:
    return text.ljust(width) if column in _ALIGNED_LEFT else text.rjust(width)
