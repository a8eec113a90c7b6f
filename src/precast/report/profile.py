"""``precast.profile``: where the time of compiled code went, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precast.autograd.compilers_in_use import compilers_of
from precast.compilers.native import NativeCompiler
from precast.compilers.native_profile import ProfiledGraph, StepTime
from precast.errors import InputValueError
from precast.ir.loops.program import LoopProgram
from precast.report.chrome_trace import trace_events
from precast.report.profile_table import table_of
from precast.report.roofline import Roofline, measure_roofline
from precast.report.step_costs import StepCost, cost_of_torch, costs_of


@dataclass(frozen=True)
class StepProfile:
    """What one step is, and how long it took."""

    graph: str
    cost: StepCost
    time: StepTime

    @property
    def seconds(self) -> float:
        """Its quickest call: what else the machine did, and what a first call prepares, is left out."""
        return self.time.shortest / 1e9

    @property
    def mean_seconds(self) -> float:
        """The mean over all calls."""
        return self.time.total / self.time.calls / 1e9 if self.time.calls else 0.0


@dataclass(frozen=True)
class Profile:
    """All steps in the order in which they run; printing it gives a table, the costliest first."""

    steps: tuple[StepProfile, ...]
    roofline: Roofline

    def __str__(self) -> str:
        return table_of(self.steps, self.roofline)

    def share_of_roofline(self, step: StepProfile) -> float | None:
        """How near a step comes to what this machine can do; above 1 where its data stayed in a cache."""
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
    """Where the time went of something compiled with ``options={"profile": True}``, in all calls so far.

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
            f"precast.profile got a {type(compiled).__name__}",
            why="it tells the times of what precast.compile returned",
            fix='compile it first: compiled = precast.compile(model, options={"profile": True})',
        )
    natives = _distinct(compilers.inference, compilers.forward, compilers.backward)
    graphs = tuple(graph for compiler in natives for graph in compiler.profiled)
    if not graphs:
        raise InputValueError(
            "there are no times to tell",
            why="nothing was compiled with timers, or nothing was called yet",
            fix='compile with options={"profile": True}, call it, and ask then',
        )
    return graphs


def _distinct(*compilers: object) -> Iterable[NativeCompiler]:
    found = {id(each): each for each in compilers if isinstance(each, NativeCompiler)}
    return found.values()


def _steps(profiled: ProfiledGraph) -> Iterable[StepProfile]:
    graph = profiled.graph.split.module.graph
    for segment in profiled.segments():
        work = segment.work
        costs = costs_of(work.steps, graph) if isinstance(work, LoopProgram) else (cost_of_torch(work),)
        for cost, time in zip(costs, segment.times, strict=True):
            yield StepProfile(profiled.name, cost, time)
