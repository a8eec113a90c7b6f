"""Steps as events of the trace format that Chrome and Perfetto read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.report.profile import StepProfile


def trace_events(steps: Iterable[StepProfile]) -> list[dict[str, Any]]:
    """One complete event a step, of its last call; a row a graph."""
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
