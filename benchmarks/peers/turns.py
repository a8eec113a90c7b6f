"""Measures one workload: starts each contender, lets them take turns slice by slice, collects what they say.

While one runs the others wait for their turn, so that thread pools that spin never meet, and whatever else the machine
does falls on all alike. The order changes with every round. A further run begins again with new processes, which find
the compilers' caches as the run before left them.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.peers.contender_process import Conditions, Ready, serve, write_onnx, write_reference
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.results import Measurement, merge_measurements
from benchmarks.peers.workload import Workload

SLICE_SECONDS = 0.3
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15
PATIENCE_SECONDS = 400
PAUSE_SECONDS = 0.02
"""Long enough for the threads of whoever ran last to stop spinning."""

Say = Callable[[str], None]


@dataclass
class Contestant:
    """A contender's process and what it has shown so far."""

    name: str
    process: BaseProcess
    connection: Connection
    ready: Ready
    slices: list[float] = field(default_factory=list)
    is_out: bool = False


def prepare_processes() -> None:
    """Import torch, transformers and Precast once, in a process that each of torch's contenders is forked from.

    Sources that change while a run goes on are then the same for all of it.
    """
    ours = ["benchmarks.peers.torch_contenders", "benchmarks.peers.contender_process"]
    compilers = ["precast.api", "precast.native.compiler", "precast.native.torch_compile"]
    # What every model of transformers imports when it is made, for two seconds.
    multiprocessing.set_forkserver_preload([*ours, *compilers, "transformers.modeling_utils"])


def measure(
    workload: Workload, names: list[str], folder: Path, *, runs: int, threads: int, clock: str, seconds: float, say: Say
) -> list[Measurement]:
    """Every contender at one workload, its runs merged; rounds go on until ``seconds`` are over, counted from here."""
    began = time.monotonic()
    if not (folder / "reference.npy").exists():
        say("float64 reference")
        _run_aside(write_reference, (workload, folder))
    if any(CONTENDERS[name].reads_onnx for name in names) and not (folder / "model.onnx").exists():
        say("ONNX export")
        _run_aside(write_onnx, (workload, folder))
    found: list[list[Measurement]] = []
    for number in range(runs):
        # Who has failed once is not waited for again.
        good = [each.contender for each in found[-1] if not each.failure] if found else names
        conditions = Conditions(workload, folder, threads, clock, is_warm=number > 0)
        found.append(_measure_once(conditions, good, began + seconds * (number + 1) / runs, _numbered(say, number)))
    return merge_measurements(found)


def _numbered(say: Say, number: int) -> Say:
    return (lambda step: say(f"run {number + 1}, {step}")) if number else say


def _measure_once(conditions: Conditions, names: list[str], deadline: float, say: Say) -> list[Measurement]:
    with _all_ended() as contestants:
        failed: list[Measurement] = []
        for name in names:
            say(f"starting {CONTENDERS[name].title}")
            started = _start(conditions, name)
            if isinstance(started, Contestant):
                contestants.append(started)
            else:
                failed.append(Measurement(name, failure=started))
        _take_turns(contestants, deadline, say)
        measured = [_result(contestant, conditions) for contestant in contestants]
    return sorted(measured + failed, key=lambda measurement: names.index(measurement.contender))


def _run_aside(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run it in a process of its own. Whoever needs what it should have written will say that it is missing."""
    process = multiprocessing.get_context("forkserver").Process(target=function, args=arguments)
    process.start()
    process.join()


def _start(conditions: Conditions, name: str) -> Contestant | str:
    """A contender that has given its first result, or why there is none."""
    # Forked from a process that has torch already, or, where torch has no business, started anew.
    context = multiprocessing.get_context("spawn" if CONTENDERS[name].reads_onnx else "forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, conditions, name), daemon=True)
    process.start()
    theirs.close()
    answer = _answer(ours)
    if isinstance(answer, Ready):
        return Contestant(name, process, ours, answer)
    process.kill()
    process.join()
    return _last_words(conditions, name) if answer is None else f"no result within {PATIENCE_SECONDS} s"


def _answer(connection: Connection) -> Any:
    """What the child says; None if it died, False if it never answered."""
    try:
        return connection.recv() if connection.poll(PATIENCE_SECONDS) else False
    except EOFError:
        return None


def _take_turns(contestants: list[Contestant], deadline: float, say: Say) -> None:
    for turn in range(MOST_ROUNDS):
        if turn >= FEWEST_ROUNDS and time.monotonic() > deadline:
            return
        say(f"round {turn + 1}")
        first = turn % max(1, len(contestants))
        for contestant in contestants[first:] + contestants[:first]:
            if (times := _ask(contestant, SLICE_SECONDS)) is not None:
                contestant.slices.append(statistics.median(times))
            time.sleep(PAUSE_SECONDS)


def _ask(contestant: Contestant, seconds: float | None) -> Any:
    """What it answers; None from one that has died or hangs, which is then out of the game."""
    if contestant.is_out:
        return None
    with suppress(BrokenPipeError):
        contestant.connection.send(seconds)
    answer = _answer(contestant.connection)
    contestant.is_out = answer is None or answer is False
    return None if contestant.is_out else answer


def _result(contestant: Contestant, conditions: Conditions) -> Measurement:
    peak = _ask(contestant, None)
    if contestant.is_out:
        return Measurement(contestant.name, failure=_last_words(conditions, contestant.name))
    first = contestant.ready.first_result_seconds
    return Measurement(
        contestant.name,
        slices=contestant.slices,
        first_result_seconds=None if conditions.is_warm else first,
        warm_result_seconds=first if conditions.is_warm else None,
        peak_bytes=peak,
        error=contestant.ready.error,
    )


@contextmanager
def _all_ended() -> Iterator[list[Contestant]]:
    """A list whose contestants are ended in any case."""
    contestants: list[Contestant] = []
    try:
        yield contestants
    finally:
        for contestant in contestants:
            contestant.connection.close()
            contestant.process.join(5)
            contestant.process.kill()


def _last_words(conditions: Conditions, name: str) -> str:
    log = conditions.folder / f"{name}.log"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:200] if lines else "ended without a word"
