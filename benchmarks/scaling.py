"""Time over threads: every contender at every number of threads, and where the time of Precast's steps goes.

Usage::

    python -m benchmarks.scaling                                  # all models, 1, 2, 4, … threads
    python -m benchmarks.scaling --models bert --threads 1 16 --contenders eager precast-frozen
    python -m benchmarks.scaling --models bert --threads 1 16 --steps

With ``--steps`` nothing is compared: a model is compiled with timers, and a table has one row for each kind of step,
with its milliseconds at each number of threads. What does not get shorter there is what to look at.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.peers import machine, turns
from benchmarks.peers.architectures import ARCHITECTURES
from benchmarks.peers.contenders import CONTENDERS, contenders_for
from benchmarks.peers.results import Outcome
from benchmarks.peers.tables import OURS, markdown, milliseconds, ratio_to_peers
from benchmarks.peers.workload import SETTINGS, Workload

MINUTES = 20
DEFAULT_CONTENDERS = ["eager", "compile", "onnxruntime", "openvino", "precast", "precast-frozen"]
STEP_CALLS = 30


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    chosen = _parser().parse_args(arguments)
    for name, value in machine.describe().items():
        print(f"{name}: {value}")
    if chosen.steps:
        for model in chosen.models:
            print(f"\n{ARCHITECTURES[model].title}, milliseconds of its steps\n")
            print(steps_over_threads(Workload(model, chosen.setting), chosen.threads), flush=True)
        return
    os.environ["OMP_NUM_THREADS"] = str(max(chosen.threads))
    turns.prepare_processes()
    seconds = 60 * chosen.minutes / len(chosen.models) / len(chosen.threads)
    for model in chosen.models:
        workload = Workload(model, chosen.setting)
        names = contenders_for(workload, chosen.contenders)
        with tempfile.TemporaryDirectory(prefix="precast-scaling-") as folder:
            outcomes = {
                threads: _outcome(workload, names, Path(folder), threads, seconds, Console(stderr=True))
                for threads in chosen.threads
            }
        print(f"\n{ARCHITECTURES[model].title}, {SETTINGS[chosen.setting].title}, milliseconds\n")
        print(table_of(outcomes, names), flush=True)


def table_of(outcomes: dict[int, Outcome], names: list[str]) -> str:
    """One row for each contender, one column for each number of threads; then our ratio to the fastest peer."""
    rows = [[CONTENDERS[name].title, *(_cell(each, name) for each in outcomes.values())] for name in names]
    if any(name in OURS for name in names):
        ratios = [ratio_to_peers(each) for each in outcomes.values()]
        rows.append(["Precast to the fastest peer", *("-" if each is None else f"{each:.2f}x" for each in ratios)])
    return markdown(["", *(f"{threads} threads" for threads in outcomes)], rows)


def _cell(outcome: Outcome, name: str) -> str:
    seconds = outcome.seconds(name)
    return "failed" if seconds is None else milliseconds(seconds)


def _outcome(
    workload: Workload, names: list[str], folder: Path, threads: int, seconds: float, console: Console
) -> Outcome:
    label = f"{workload}, {threads} threads"
    with console.status(label) as status:
        measurements = turns.measure(
            workload,
            names,
            folder,
            runs=1,
            threads=threads,
            clock="wall",
            seconds=seconds,
            say=lambda step: status.update(f"{label}: {step}"),
        )
    for each in measurements:
        if each.failure:
            console.print(f"{label}: {each.contender} failed: {each.failure}", highlight=False)
    return Outcome(workload.architecture, workload.setting, measurements)


def steps_over_threads(workload: Workload, threads: Sequence[int]) -> str:
    """Compile a model frozen and with timers, anew for each number of threads, and tabulate its steps by kind."""
    import torch

    import precast
    from benchmarks.peers.making import make
    from precast.report.step_costs import Roofline

    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(threads))
    counts: dict[tuple[str, str], int] = defaultdict(int)
    wall: list[float] = []
    limits: list[Roofline] = []
    for column, count in enumerate(threads):
        torch.set_num_threads(count)
        model, inputs = make(workload)
        compiled = precast.compile(model, dynamic=False, options={"freeze": True, "profile": True})
        with torch.no_grad():
            compiled(inputs)
            calls = []
            for _ in range(STEP_CALLS):
                started = time.perf_counter()
                compiled(inputs)
                calls.append(time.perf_counter() - started)
        wall.append(min(calls))
        profile = precast.profile(compiled)
        limits.append(profile.roofline)
        for step in profile.steps:
            key = (step.cost.kind, f"{', '.join(step.cost.operators)[:44]}, {step.cost.flops / 1e6:.1f} MFLOP")
            times[key][column] += step.seconds
            counts[key] += column == 0
    order = sorted(times, key=lambda key: -times[key][-1])
    rows = [[f"{kind}: {what}", str(counts[kind, what]), *(f"{each * 1e3:.3f}" for each in times[kind, what])]
            for kind, what in order]  # fmt: skip
    rows.append(
        [
            "all steps",
            str(sum(counts.values())),
            *(f"{sum(each) * 1e3:.3f}" for each in zip(*times.values(), strict=True)),
        ]
    )
    rows.append(["a call", "", *(f"{each * 1e3:.3f}" for each in wall)])
    rows.append(["what the machine can do, GFLOP/s", "", *(f"{each.flops_a_second / 1e9:.0f}" for each in limits)])
    rows.append(["and GB/s", "", *(f"{each.bytes_a_second / 1e9:.1f}" for each in limits)])
    return markdown(["", "steps", *(f"{count} threads" for count in threads)], rows)


def _powers() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({1 << each for each in range(cores.bit_length()) if 1 << each <= cores} | {cores})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="Time over threads.")
    parser.add_argument("--models", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES), metavar="MODEL")
    parser.add_argument("--threads", nargs="+", type=int, default=_powers(), help="numbers of threads")
    parser.add_argument("--setting", choices=SETTINGS, default="inference-1")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=DEFAULT_CONTENDERS, metavar="CONTENDER")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the time for all; {MINUTES} if not given")
    parser.add_argument("--steps", action="store_true", help="the steps of frozen models, instead of a comparison")
    return parser


if __name__ == "__main__":
    main()
