"""The times that compiled graphs took: native steps have timers of their own, those that torch runs are timed here."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import fx

from precast.native.call import NativeStep, RunningStep, Sizes, TorchStep, Values
from precast.native.loops.program import LoopProgram
from precast.runtime import Entry

if TYPE_CHECKING:
    from precast.native.compiler import NativeGraph


class _CStepTime(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("calls", "total", "shortest", "started", "last"))


@dataclass(frozen=True)
class StepTime:
    """Nanoseconds that a step took: in all calls, in the quickest, and in the last one, which began at ``started``."""

    calls: int
    total: int
    shortest: int
    started: int
    last: int


class StepClock:
    """Collects the times of a step that Python runs."""

    def __init__(self) -> None:
        self.time = StepTime(0, 0, 0, 0, 0)

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.perf_counter_ns()
        yield
        last, before = time.perf_counter_ns() - started, self.time
        shortest = min(before.shortest, last) if before.calls else last
        self.time = StepTime(before.calls + 1, before.total + last, shortest, started, last)


@dataclass(frozen=True)
class TimedTorchStep(TorchStep):
    """Nodes that torch runs one by one, timed together."""

    clock: StepClock = field(default_factory=StepClock)

    def run(self, values: Values, sizes: Sizes) -> None:
        with self.clock.timed():
            super().run(values, sizes)


def with_torch_timed(steps: Iterable[RunningStep]) -> tuple[RunningStep, ...]:
    """The steps of a graph with clocks for those that torch runs; native code has its own."""
    return tuple(
        replace(each, step=TimedTorchStep(each.step.nodes, each.step.readers))
        if isinstance(each.step, TorchStep)
        else each
        for each in steps
    )


@dataclass(frozen=True)
class TimedSegment:
    """A part of a graph and the times of its steps so far: a program's, or one of all nodes that torch runs."""

    work: LoopProgram | tuple[fx.Node, ...]
    times: tuple[StepTime, ...]


@dataclass(frozen=True)
class ProfiledGraph:
    """A compiled graph by its name."""

    name: str
    graph: NativeGraph

    def segments(self) -> Iterator[TimedSegment]:
        """The parts in the order in which they run."""
        programs = self.graph.programs
        assert programs is not None, "a graph with timers is never restored"
        remaining = iter(programs)
        for each in self.graph.steps:
            if isinstance(each.step, TimedTorchStep):
                yield TimedSegment(each.step.nodes, (each.step.clock.time,))
            elif isinstance(each.step, NativeStep):
                program = next(remaining).program
                yield TimedSegment(program, read_times(each.step.entry, len(program.steps)))


class ProfiledGraphs:
    """Grows with every graph that one compiler compiles. A copy starts empty: what is copied compiles for itself."""

    def __init__(self) -> None:
        self._graphs: list[ProfiledGraph] = []

    def add(self, name: str, graph: NativeGraph) -> None:
        """From now on, the graph's times are known."""
        graph.steps = with_torch_timed(graph.steps)
        self._graphs.append(ProfiledGraph(name, graph))

    def __iter__(self) -> Iterator[ProfiledGraph]:
        return iter(tuple(self._graphs))

    def __reduce__(self) -> tuple[type[ProfiledGraphs], tuple[()]]:
        return ProfiledGraphs, ()


def read_times(entry: Entry, steps: int) -> tuple[StepTime, ...]:
    """The times of an entry's steps, from a library that was built with timers."""
    function = entry.model.library.handle.precast_step_times
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.POINTER(_CStepTime)
    found = function(entry.number)
    return tuple(
        StepTime(each.calls, each.total, each.shortest, each.started, each.last)
        for each in (found[number] for number in range(steps))
    )
