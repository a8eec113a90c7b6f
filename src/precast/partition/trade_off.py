"""What each memory budget costs in recomputation: the curve to choose a budget from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from precast.partition.min_cut import Problem, decide, pose
from precast.partition.peak import estimated_peak_bytes, measured_saved_bytes
from precast.partition.plot import plot_steps
from precast.partition.split import split

BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


@dataclass(frozen=True)
class TradeOffPoint:
    """What one budget gives; ``measured_saved_bytes`` is None where no inputs were given to run the forward with."""

    memory_budget: float
    allowed_bytes: int
    saved_bytes: int
    recomputed_flops: int
    estimated_peak_bytes: int
    measured_saved_bytes: int | None


@dataclass(frozen=True)
class TradeOffCurve:
    """Points in the order the budgets were given, and what the default partition saves."""

    default_bytes: int
    points: tuple[TradeOffPoint, ...]

    def as_table(self) -> str:
        """Return the curve as text."""
        header = f"{'budget':>14} {'saved bytes':>16} {'recomputed FLOPs':>20} {'estimated peak':>16}"
        rows = [
            f"{point.memory_budget:>14} {point.saved_bytes:>16,} {point.recomputed_flops:>20,}"
            f" {point.estimated_peak_bytes:>16,}"
            for point in self.points
        ]
        return "\n".join([header, *rows])

    def as_svg(self) -> str:
        """Return a drawing: memory saved for the backward against work done again."""
        return plot_steps(
            [(point.recomputed_flops, point.saved_bytes) for point in self.points],
            title="Memory against recomputation",
            x_label="recomputed FLOPs",
            y_label="saved bytes",
        )


def trade_off_curve(
    joint_module: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    budgets: Sequence[float] = BUDGETS,
    primals: Sequence[torch.Tensor | int] | None = None,
    static_lifetime_input_indices: Sequence[int] | None = None,
) -> TradeOffCurve:
    """Return what each of ``budgets`` saves and recomputes; with real ``primals``, also measure what is saved."""
    problem = pose(
        joint_module,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
    )
    points = tuple(
        _point(problem, budget, num_fwd_outputs, primals, static_lifetime_input_indices) for budget in budgets
    )
    return TradeOffCurve(problem.default_bytes, points)


def _point(
    problem: Problem,
    memory_budget: float,
    num_fwd_outputs: int,
    primals: Sequence[torch.Tensor | int] | None,
    alive: Sequence[int] | None,
) -> TradeOffPoint:
    decision = decide(problem, memory_budget)
    forward, backward = split(problem.joint, decision.saved)
    held = {node.name for node in problem.held}
    measured = (
        None if primals is None else measured_saved_bytes(forward, primals, num_fwd_outputs=num_fwd_outputs, held=alive)
    )
    return TradeOffPoint(
        memory_budget=memory_budget,
        allowed_bytes=decision.explanation.allowed_bytes,
        saved_bytes=decision.explanation.saved_bytes,
        recomputed_flops=decision.explanation.recomputed_flops,
        estimated_peak_bytes=max(estimated_peak_bytes(half, held=held) for half in (forward, backward)),
        measured_saved_bytes=measured,
    )
