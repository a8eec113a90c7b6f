"""Measures Precast against its peers; ``make bench`` calls it.

Usage::

    python -m benchmarks.peers                                    # everything, three runs, one thread, 60 minutes
    python -m benchmarks.peers --quick                            # three models, one run, 8 minutes
    python -m benchmarks.peers --models bert vit --settings inference-1 --contenders eager precast openvino
    python -m benchmarks.peers --merge first.json second.json third.json --publish
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from rich.console import Console

from benchmarks.peers import machine, publish, results, tables, turns
from benchmarks.peers.architectures import ARCHITECTURES
from benchmarks.peers.contender_process import CLOCKS
from benchmarks.peers.contenders import CONTENDERS, contenders_for
from benchmarks.peers.results import Outcome, Run
from benchmarks.peers.workload import SETTINGS, Workload

FULL_MINUTES, QUICK_MINUTES = 60, 8
FULL_RUNS, QUICK_RUNS = 3, 1
QUICK_MODELS, QUICK_SETTINGS = ["bert", "resnet50", "llama"], ["inference-1", "training"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    chosen = _parser().parse_args(arguments)
    run = results.merge([results.load(path) for path in chosen.merge]) if chosen.merge else _measured(chosen)
    if chosen.publish:
        publish.publish(run)
    print(tables.all_tables(run))


def _measured(chosen: argparse.Namespace) -> Run:
    models = chosen.models or (QUICK_MODELS if chosen.quick else list(ARCHITECTURES))
    settings = chosen.settings or (QUICK_SETTINGS if chosen.quick else list(SETTINGS))
    # Read when OpenMP is loaded, which children do.
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    turns.prepare_processes()
    console = Console(stderr=True)
    run = measure_all(
        [Workload(model, setting) for setting in settings for model in models],
        chosen.contenders,
        runs=chosen.runs or (QUICK_RUNS if chosen.quick else FULL_RUNS),
        threads=chosen.threads,
        clock=chosen.clock,
        seconds=60 * (chosen.minutes or (QUICK_MINUTES if chosen.quick else FULL_MINUTES)),
        console=console,
        keep=lambda run: results.save(run, chosen.json) if chosen.json else None,
    )
    if run.left_out:
        console.print(f"No time was left for: {', '.join(run.left_out)}; give more with --minutes.")
    return run


def measure_all(
    workloads: list[Workload],
    contenders: list[str],
    *,
    runs: int,
    threads: int,
    clock: str,
    seconds: float,
    console: Console,
    keep: Callable[[Run], None],
) -> Run:
    """Measure one workload after the other while there is time; what there is so far is kept after each."""
    began = time.monotonic()
    run = Run(date.today().isoformat(), machine.describe(), threads, clock, [])
    plan = f"{len(workloads)} workloads, {runs} runs, {threads} threads, {seconds / 60:.0f} min"
    console.print(f"{plan}; load {machine.load_now()}")
    for number, workload in enumerate(workloads, start=1):
        elapsed = time.monotonic() - began
        if _is_over(elapsed, seconds, done=number - 1):
            run.left_out.append(str(workload))
            continue
        run.outcomes.append(
            _measure(
                workload,
                contenders_for(workload, contenders),
                runs=runs,
                threads=threads,
                clock=clock,
                seconds=(seconds - elapsed) / (len(workloads) - number + 1),
                label=f"{number}/{len(workloads)} {workload}",
                console=console,
            )
        )
        keep(run)
    keep(run)
    return run


def _is_over(elapsed: float, seconds: float, *, done: int) -> bool:
    """Whether another workload, as long as the mean of those before it, would end too late by more than half of it."""
    return bool(done) and elapsed + elapsed / done / 2 > seconds


def _measure(
    workload: Workload,
    names: list[str],
    *,
    runs: int,
    threads: int,
    clock: str,
    seconds: float,
    label: str,
    console: Console,
) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder, console.status(label) as status:
        measurements = turns.measure(
            workload,
            names,
            Path(folder),
            runs=runs,
            threads=threads,
            clock=clock,
            seconds=seconds,
            say=lambda step: status.update(f"{label}: {step}"),
        )
    outcome = Outcome(workload.architecture, workload.setting, measurements)
    console.print(f"{label}, {time.monotonic() - started:.0f} s: {_in_short(outcome)}", highlight=False, soft_wrap=True)
    return outcome


def _in_short(outcome: Outcome) -> str:
    return ", ".join(
        f"{each.contender} {each.seconds * 1000:.1f} ms" if each.seconds else f"{each.contender} failed: {each.failure}"
        for each in outcome.measurements
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="Measure Precast against its peers on real architectures."
    )
    parser.add_argument("--models", nargs="+", choices=ARCHITECTURES, metavar="MODEL", help=", ".join(ARCHITECTURES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="CONTENDER",
        help=", ".join(CONTENDERS),
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=int, help=f"runs of each workload, the first with nothing cached; {FULL_RUNS}, or 1 if quick"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender; 1 if not given")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu counts less of what else runs; for one thread"
    )
    parser.add_argument("--minutes", type=float, help=f"the time for all; {FULL_MINUTES}, or {QUICK_MINUTES} if quick")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK_MODELS)}; no batch of 8")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="JSON", help="measure nothing; merge these runs")
    parser.add_argument("--publish", action="store_true", help="write the tables into docs/benchmarks.md and README.md")
    return parser
