"""The times that compiled graphs took, read from libraries that were built with timers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precast.autograd.graph_names import get_aot_graph_name
from precast.runtime import Entry

if TYPE_CHECKING:
    from precast.compilers.native import NativeGraph


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


@dataclass(frozen=True)
class ProfiledGraph:
    """A compiled graph by its name."""

    name: str
    graph: NativeGraph

    def times(self) -> tuple[tuple[StepTime, ...], ...]:
        """The times so far of each program's steps."""
        programs = self.graph.programs
        assert programs is not None, "a graph with timers is never restored"
        return tuple(
            read_times(entry, len(program.program.steps))
            for entry, program in zip(self.graph.entries, programs, strict=True)
        )


class ProfiledGraphs:
    """Grows with every graph that one compiler compiles. A copy starts empty: what is copied compiles for itself."""

    def __init__(self) -> None:
        self._graphs: list[ProfiledGraph] = []

    def add(self, graph: NativeGraph) -> None:
        self._graphs.append(ProfiledGraph(get_aot_graph_name(), graph))

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
