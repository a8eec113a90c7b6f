"""One contender in a process of its own: makes its workload ready, then runs a slice whenever it is its turn.

Parent → child: a number of seconds to run for, or None to leave. Child → parent: ``Ready``, then the seconds of each
call of the slice, then the peak of its memory. A child that fails dies, and its log tells why.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy

from benchmarks.peers import memory, onnx_contenders
from benchmarks.peers.accuracy import relative_error, sampled
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.workload import Workload

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Conditions:
    """What all contenders are given alike."""

    workload: Workload
    folder: Path
    threads: int
    clock: str
    is_warm: bool
    """Whether an earlier run has left its caches and its ONNX file in the folder."""


@dataclass(frozen=True)
class Ready:
    """What the first call took, from the finished model to its result, and how far that is from float64.

    The export to ONNX is counted where it is needed and not done before.
    """

    first_result_seconds: float
    error: float


def serve(connection: Connection, conditions: Conditions, contender: str) -> None:
    """Be one contender until the parent says to leave."""
    log_to(conditions.folder / f"{contender}.log")
    _keep_caches_in(conditions.folder / contender)
    run_first = _onnx_first if CONTENDERS[contender].reads_onnx else _torch_first
    call, numbers, seconds = run_first(conditions, contender)
    connection.send(Ready(seconds, relative_error(numbers, numpy.load(conditions.folder / "reference.npy"))))
    memory.forget_peak()
    while (slice_seconds := connection.recv()) is not None:
        connection.send(_run_slice(call, slice_seconds, CLOCKS[conditions.clock]))
    connection.send(memory.peak_bytes())


def write_reference(workload: Workload, folder: Path) -> None:
    """Save what eager gives in float64."""
    import torch

    from benchmarks.peers.torch_contenders import prepare

    log_to(folder / "reference.log")
    runner = prepare(workload, "eager", torch.float64)
    numpy.save(folder / "reference.npy", runner.numbers(runner.call()))


def write_onnx(workload: Workload, folder: Path) -> None:
    """Save the model as ONNX."""
    log_to(folder / "export.log")
    onnx_contenders.export(workload, folder)


def log_to(path: Path) -> None:
    """Send everything that this process prints, compilers and all, to a file."""
    with path.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _keep_caches_in(folder: Path) -> None:
    # A folder of its own for each: nobody's first result is helped by another's.
    os.environ["PRECAST_CACHE_DIR"] = str(folder / "precast")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")


def _torch_first(conditions: Conditions, contender: str) -> tuple[Callable[[], Any], numpy.ndarray, float]:
    import torch

    from benchmarks.peers.torch_contenders import prepare

    torch.set_num_threads(conditions.threads)
    runner = prepare(conditions.workload, contender)
    started = time.perf_counter()
    result = runner.call()
    return runner.call, runner.numbers(result), time.perf_counter() - started


def _onnx_first(conditions: Conditions, contender: str) -> tuple[Callable[[], Any], numpy.ndarray, float]:
    started = time.perf_counter()
    call = onnx_contenders.start(contender, conditions.folder, conditions.threads)
    result = call()
    seconds = time.perf_counter() - started
    export_seconds = 0.0 if conditions.is_warm else float(numpy.load(conditions.folder / "export_seconds.npy"))
    return call, sampled(result), seconds + export_seconds


def _run_slice(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Call until the time is over, at least once; the seconds of each call."""
    times: list[float] = []
    while sum(times) < seconds:
        started = clock()
        call()
        times.append(clock() - started)
    return times
