"""Times of compiled graphs: native steps have timers of their own, torch steps are timed here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import fx

from precast.native.call import NativeStep, Sizes, TorchStep, Values
from precast.native.loops.program import LoopProgram
from precast.native.targets import StepTime

if TYPE_CHECKING:
    from precast.native.compiler import NativeGraph


class StepClock:
    """Accumulates the times of a step that Python runs."""

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
    """Operators that torch runs one by one, timed together."""

    clock: StepClock = field(default_factory=StepClock)

    def run(self, values: Values, sizes: Sizes) -> None:
        with self.clock.timed():
            super().run(values, sizes)


def with_torch_timed(steps: Iterable[NativeStep | TorchStep]) -> tuple[NativeStep | TorchStep, ...]:
    """The steps of a graph with clocks around those that torch runs; native code has its own."""
    return tuple(TimedTorchStep(step.calls, step.dead) if isinstance(step, TorchStep) else step for step in steps)


@dataclass(frozen=True)
class TimedSegment:
    """A segment and the times of its steps so far: those of a program, or one for all nodes that torch runs."""

    work: LoopProgram | tuple[fx.Node, ...]
    times: tuple[StepTime, ...]


@dataclass(frozen=True)
class ProfiledGraph:
    """A compiled graph and its name."""

    name: str
    graph: NativeGraph

    def segments(self) -> Iterator[TimedSegment]:
        """The segments in execution order."""
        programs = self.graph.programs
        assert programs is not None, "a graph with timers is never restored"
        remaining = iter(programs)
        for step, segment in zip(self.graph.steps, self.graph.split.segments, strict=True):
            if isinstance(step, TimedTorchStep):
                yield TimedSegment(segment.nodes, (step.clock.time,))
            elif isinstance(step, NativeStep):
                program = next(remaining).program
                times = self.graph.target.step_times(step.entry, len(program.steps))
                yield TimedSegment(program, tuple(times))


class ProfiledGraphs:
    """All graphs that one compiler has compiled. A copy starts empty: the copied compiler records its own."""

    def __init__(self) -> None:
        self._graphs: list[ProfiledGraph] = []

    def add(self, name: str, graph: NativeGraph) -> None:
        """Start to report this graph's times."""
        graph.steps = with_torch_timed(graph.steps)
        self._graphs.append(ProfiledGraph(name, graph))

    def __iter__(self) -> Iterator[ProfiledGraph]:
        return iter(tuple(self._graphs))

    def __reduce__(self) -> tuple[type[ProfiledGraphs], tuple[()]]:
        return ProfiledGraphs, ()
