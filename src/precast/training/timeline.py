"""When a step computes, exchanges and waits, and what overlaps, measured by torch's profiler.

::

    3.1 ms, of which 0.4 ms waiting; exchanges take 1.9 ms, 79% of it beside computing
      compute     ████████████████████░░████░
      all_reduce       ▒▒▒▒▒▒▒▒▒               1.05 MB
      all_reduce               ▒▒▒▒▒▒▒▒        0.26 MB
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.autograd.profiler_util import FunctionEvent

from precast.artifact.archive import write_file
from precast.artifact.schema import Count, ListOf, Real, Shape, Text, check_shape
from precast.errors import ArtifactError, MissingFileError
from precast.graph.nodes import value_of

_START, _WAIT = "_c10d_functional::", "_c10d_functional::wait_tensor"
_ENGINES = ("gloo:", "nccl:")
_WIDTH = 60
_KEY = "precast"
_SHAPE: Shape = {
    "seconds": Real(),
    "processes": Count(),
    "exchanges": ListOf(
        {
            "operator": Text("all_reduce|reduce_scatter_tensor|all_gather_into_tensor"),
            "bytes": Count(),
            "started": Real(),
            "finished": Real(),
            "waited_from": Real(),
            "waited_until": Real(),
        },
        100_000,
    ),
}


@dataclass(frozen=True)
class Exchange:
    """One collective of a step: its start and end, and the time for which the program waited for it.

    ``bytes`` are those of the whole tensor; all times are seconds since the step began.
    """

    operator: str
    bytes: int
    started: float
    finished: float
    waited_from: float
    waited_until: float

    @property
    def seconds(self) -> float:
        return self.finished - self.started


@dataclass(frozen=True)
class Timeline:
    """One step of one of several processes; printing it draws when it computed, exchanged and waited."""

    seconds: float
    processes: int
    exchanges: tuple[Exchange, ...]

    @property
    def waiting_seconds(self) -> float:
        """How long the program only waited."""
        return sum(each.waited_until - each.waited_from for each in self.exchanges)

    @property
    def exchanging_seconds(self) -> float:
        """How long collectives were in progress."""
        return _covered([(each.started, each.finished) for each in self.exchanges])

    @property
    def overlap(self) -> float:
        """The share of the exchanges that overlapped with computation."""
        waits = [(each.waited_from, each.waited_until) for each in self.exchanges]
        both = [(each.started, each.finished) for each in self.exchanges]
        beside = _covered([*both, *waits]) - _covered(waits)
        return beside / self.exchanging_seconds if self.exchanging_seconds else 1.0

    def __str__(self) -> str:
        head = (
            f"{self.seconds * 1e3:.3f} ms, of which {self.waiting_seconds * 1e3:.3f} ms waiting; exchanges take "
            f"{self.exchanging_seconds * 1e3:.3f} ms, {self.overlap:.0%} of it beside computing"
        )
        waits = [(each.waited_from, each.waited_until) for each in self.exchanges]
        rows = [("compute", _bar([(0.0, self.seconds)], "█", waits, "░", self.seconds), "")]
        for each in self.exchanges:
            bar = _bar([(each.started, each.finished)], "▒", [], "", self.seconds)
            rows.append((each.operator, bar, f"{each.bytes / 1e6:.2f} MB"))
        width = max(len(name) for name, _, _ in rows)
        return "\n".join([head, *(f"  {name:{width}}  {bar}  {size}".rstrip() for name, bar, size in rows)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ``precast plan``, which chrome://tracing and Perfetto can display."""
        content = {"traceEvents": self._events(), _KEY: asdict(self)}
        write_file(Path(path), [json.dumps(content, indent=1).encode()])

    def _events(self) -> list[dict[str, Any]]:
        spans = [("step", 0, 0.0, self.seconds)]
        spans += [(f"wait for {each.operator}", 0, each.waited_from, each.waited_until) for each in self.exchanges]
        spans += [(each.operator, 1 + i % 4, each.started, each.finished) for i, each in enumerate(self.exchanges)]
        return [
            {"ph": "X", "pid": 0, "tid": row, "name": name, "ts": start * 1e6, "dur": (end - start) * 1e6}
            for name, row, start, end in spans
        ]


def read_timeline(path: Path) -> Timeline:
    """Read a file that ``Timeline.save`` wrote."""
    if not path.exists():
        raise MissingFileError(f"{path} does not exist.", why="there is no such file", fix="Check the path.")
    try:
        content = json.loads(path.read_bytes())[_KEY]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ArtifactError(
            f"{path} does not contain a timeline of a step.",
            why=f"{type(problem).__name__}: {problem}",
            fix="Write one: step.timeline(batch).save(path).",
        ) from problem
    check_shape(content, _SHAPE, str(path))
    return Timeline(
        float(content["seconds"]), content["processes"], tuple(Exchange(**each) for each in content["exchanges"])
    )


def timeline_of(run: Callable[[], object], graph: fx.Graph, processes: int) -> Timeline:
    """Profile a step, whose collectives run in the order of ``graph``."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler, torch.profiler.record_function("precast step"):
        run()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    (whole,) = [event for event in events if event.name == "precast step"]
    return _timeline(whole, events, graph, processes)


def _timeline(whole: FunctionEvent, events: Sequence[FunctionEvent], graph: fx.Graph, processes: int) -> Timeline:
    begun = [event for event in events if event.name.startswith(_START) and event.name != _WAIT]
    waits = [event for event in events if event.name == _WAIT]
    nodes = [node for node in graph.nodes if str(node.target).startswith("_c10d_functional")]
    starts = [node for node in nodes if "wait_tensor" not in str(node.target)]
    waited = dict(zip([node.args[0] for node in nodes if node not in starts], waits, strict=True))
    # Engines record their work in the order in which it was submitted.
    engines = [event for event in events if event.name.startswith(_ENGINES)]
    found = []
    for node, event, engine in zip(starts, begun, engines, strict=True):
        started, ended = _seconds(event, whole)[0], _seconds(engine, whole)[1]
        span = _seconds(waited[node], whole)
        operator = str(node.target).split(".")[1]
        found.append(Exchange(operator, _whole_bytes(node), started, max(ended, started), *span))
    return Timeline(_seconds(whole, whole)[1], processes, tuple(found))


def _seconds(event: FunctionEvent, whole: FunctionEvent) -> tuple[float, float]:
    begin = whole.time_range.start
    return (event.time_range.start - begin) / 1e6, (event.time_range.end - begin) / 1e6


def _whole_bytes(node: fx.Node) -> int:
    """The bytes of the tensor before it is scattered, or after it was gathered."""
    sizes = [value.numel() * value.element_size() for value in map(value_of, (node, *node.all_input_nodes[:1]))
             if isinstance(value, torch.Tensor)]  # fmt: skip
    return max(sizes)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The total time covered by at least one of the spans."""
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _bar(
    spans: Sequence[tuple[float, float]],
    mark: str,
    others: Sequence[tuple[float, float]],
    other_mark: str,
    seconds: float,
) -> str:
    def at(moment: float) -> str:
        if any(start <= moment < end for start, end in others):
            return other_mark
        return mark if any(start <= moment < end for start, end in spans) else " "

    return "".join(at((place + 0.5) * seconds / _WIDTH) for place in range(_WIDTH))
