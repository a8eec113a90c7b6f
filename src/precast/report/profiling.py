"""``precast.profile``: where compiled code spends its time, step by step.

As a table, steps that do the same for the same line are one row, the costliest first.

As events, in the trace format that Chrome and Perfetto read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.autograd.compilers_in_use import compilers_of
from precast.errors import InputValueError
from precast.graph.compilation import kind_of_graph
from precast.native.compiler import NativeCompiler
from precast.native.loops.program import LoopProgram
from precast.native.profile import ProfiledGraph
from precast.native.targets import StepTime
from precast.report.step_costs import Roofline, StepCost, cost_of_torch, costs_of, measure_roofline

if TYPE_CHECKING:
    from precast.report.step_costs import Roofline


def trace_events(steps: Iterable[StepProfile]) -> list[dict[str, Any]]:
    """One complete event per step, for its last call; a row per graph."""
    steps = [step for step in steps if step.time.calls]
    rows = {graph: number for number, graph in enumerate(dict.fromkeys(step.graph for step in steps))}
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": graph}}
        for graph, number in rows.items()
    ]
    return [*names, *(_event(step, rows[step.graph]) for step in steps)]


def _event(step: StepProfile, row: int) -> dict[str, Any]:
    cost = step.cost
    return {
        "ph": "X",
        "name": ", ".join(cost.operators) or cost.name,
        "cat": cost.kind,
        "pid": 0,
        "tid": row,
        "ts": step.time.started / 1000,
        "dur": step.time.last / 1000,
        "args": {"step": cost.name, "bytes": cost.moved, "flops": cost.flops, "lines": list(cost.lines)},
    }


_MOST_ROWS = 30
_WIDEST = 44
_HEADER = ("ms", "share", "times", "kind", "operators", "MB", "MFLOP", "GFLOP/s", "GB/s", "roofline", "line")
_ALIGNED_LEFT = {"kind", "operators", "line"}


def table_of(steps: Sequence[StepProfile], roofline: Roofline) -> str:
    """One table per graph, and the roofline of the machine."""
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
    """The last line, by its file name only, and the number of other lines."""
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


@dataclass(frozen=True)
class StepProfile:
    """One step, and its times."""

    graph: str
    cost: StepCost
    time: StepTime

    @property
    def seconds(self) -> float:
        """Its fastest call, which excludes other load on the machine and first-call initialization."""
        return self.time.shortest / 1e9

    @property
    def mean_seconds(self) -> float:
        """The mean over all calls."""
        return self.time.total / self.time.calls / 1e9 if self.time.calls else 0.0


@dataclass(frozen=True)
class Profile:
    """All steps in execution order; printing it shows a table, the costliest first."""

    steps: tuple[StepProfile, ...]
    roofline: Roofline

    def __str__(self) -> str:
        return table_of(self.steps, self.roofline)

    def share_of_roofline(self, step: StepProfile) -> float | None:
        """How close a step comes to the machine's peak; above 1 if its data stayed in a cache."""
        shortest = self.roofline.shortest_seconds(step.cost.flops, step.cost.moved)
        return shortest / step.seconds if step.seconds else None

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        steps = [
            {
                "graph": step.graph,
                **asdict(step.cost),
                "calls": step.time.calls,
                "seconds": step.seconds,
                "mean_seconds": step.mean_seconds,
                "share_of_roofline": self.share_of_roofline(step),
            }
            for step in self.steps
        ]
        return {"roofline": asdict(self.roofline), "steps": steps}

    def save_trace(self, path: str | Path) -> None:
        """Write the last call of each graph as a Chrome trace, for chrome://tracing or Perfetto."""
        Path(path).write_text(json.dumps({"traceEvents": trace_events(self.steps)}))


def profile(compiled: Callable[..., Any]) -> Profile:
    """Return where the time went in all calls so far of something compiled with ``options={"profile": True}``.

    >>> import precast, torch
    >>> function = precast.compile(lambda x: x.exp().sum(), options={"profile": True})
    >>> _ = function(torch.ones(1000))
    >>> [step.cost.operators for step in profile(function).steps]
    [('exp', 'sum')]
    """
    steps = tuple(step for graph in profiled_graphs(compiled) for step in _steps(graph))
    reached = max((step.cost.flops / step.seconds for step in steps if step.seconds), default=0.0)
    return Profile(steps, measure_roofline().at_least(reached))


def profiled_graphs(compiled: Callable[..., Any]) -> tuple[ProfiledGraph, ...]:
    """The graphs that were compiled with timers, in the order of compilation."""
    compilers = compilers_of(compiled)
    if compilers is None:
        raise InputValueError(
            f"precast.profile got an object of type {type(compiled).__name__}",
            why="it reports the times of what precast.compile returned",
            fix='compile it first: compiled = precast.compile(model, options={"profile": True})',
        )
    natives = _distinct(compilers.inference, compilers.forward, compilers.backward)
    graphs = tuple(graph for compiler in natives for graph in compiler.profiled)
    if not graphs:
        raise InputValueError(
            "there are no times to report",
            why="nothing was compiled with timers, or nothing was called yet",
            fix='compile with options={"profile": True}, and call it first',
        )
    return graphs


def _distinct(*compilers: object) -> Iterable[NativeCompiler]:
    found = {id(each): each for each in compilers if isinstance(each, NativeCompiler)}
    return found.values()


def _steps(profiled: ProfiledGraph) -> Iterable[StepProfile]:
    graph, target = profiled.graph.split.module.graph, profiled.graph.target
    for segment in profiled.segments():
        work = segment.work
        costs = costs_of(work.steps, graph, target) if isinstance(work, LoopProgram) else (cost_of_torch(work),)
        for cost, time in zip(costs, segment.times, strict=True):
            yield StepProfile(profiled.name, cost, time)
