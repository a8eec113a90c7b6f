"""What each memory budget costs in recomputation, as a curve to choose a budget from; and peak memory by liveness."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from precast.ops.cost import bytes_of
from precast.partition.min_cut import Problem, decide, pose
from precast.partition.split import split
from precast.partition.storage import storage_root
from precast.runtime.line_drawing import Line, draw_lines


def estimated_peak_bytes(module: fx.GraphModule, *, held: Collection[str] = ()) -> int:
    """Return the most bytes alive at once while ``module`` runs, each value freed after its last use.

    Inputs named in ``held`` belong to the caller and do not count; the others count until their last use.
    """
    nodes = list(module.graph.nodes)
    roots = {node: storage_root(node) for node in nodes}
    last_use = dict[fx.Node, int]()
    for index, node in enumerate(nodes):
        for used in (node, *node.all_input_nodes):
            last_use[roots[used]] = index
    dying: dict[int, list[fx.Node]] = {}
    for root, index in last_use.items():
        dying.setdefault(index, []).append(root)
    # A tuple counts by its items, which have their own lifetimes.
    tensors = [root for root in set(roots.values()) if isinstance(root.meta.get("val"), torch.Tensor)]
    counted = {root: bytes_of(root.meta["val"]) for root in tensors if root.name not in held}
    alive = sum(size for root, size in counted.items() if root.op == "placeholder")
    peak = alive
    for index, node in enumerate(nodes):
        if node.op != "placeholder":
            alive += counted.get(node, 0)
        peak = max(peak, alive)
        alive -= sum(counted.get(root, 0) for root in dying.get(index, ()))
    return peak


def measured_saved_bytes(
    forward: fx.GraphModule,
    primals: Sequence[torch.Tensor | int],
    *,
    num_fwd_outputs: int,
    held: Collection[int] | None = None,
) -> int:
    """Run ``forward`` and return the memory its saved tensors keep alive beyond that of the ``held`` primals.

    By default, all primals are assumed to stay alive.
    """
    with torch.no_grad():
        saved = forward(*primals)[num_fwd_outputs:]
    alive = primals if held is None else [primals[number] for number in held]
    inputs = {value.untyped_storage().data_ptr() for value in alive if isinstance(value, torch.Tensor)}
    storages = [value.untyped_storage() for value in saved if isinstance(value, torch.Tensor)]
    kept = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in inputs}
    return sum(kept.values())


BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


@dataclass(frozen=True)
class TradeOffPoint:
    """The result of one budget; ``measured_saved_bytes`` is None if there were no inputs to run the forward with."""

    memory_budget: float
    allowed_bytes: int
    saved_bytes: int
    recomputed_flops: int
    estimated_peak_bytes: int
    measured_saved_bytes: int | None


@dataclass(frozen=True)
class TradeOffCurve:
    """One point per budget, in the order given, and what the default partition saves."""

    default_bytes: int
    points: tuple[TradeOffPoint, ...]

    def as_table(self) -> str:
        """Return the curve as a text table."""
        header = f"{'budget':>14} {'saved bytes':>16} {'recomputed FLOPs':>20} {'estimated peak':>16}"
        rows = [
            f"{point.memory_budget:>14} {point.saved_bytes:>16,} {point.recomputed_flops:>20,}"
            f" {point.estimated_peak_bytes:>16,}"
            for point in self.points
        ]
        return "\n".join([header, *rows])

    def as_svg(self) -> str:
        """Return the curve as SVG: bytes saved for the backward against operations recomputed."""
        points = sorted(self.points, key=lambda point: (point.recomputed_flops, -point.saved_bytes))
        line = Line(
            [(point.recomputed_flops, point.saved_bytes) for point in points],
            labels=[f"budget {point.memory_budget:g}" for point in points],
        )
        return draw_lines(
            [line],
            title="Memory against recomputation, by budget",
            x_label="recomputed FLOPs",
            y_label="saved bytes",
            from_zero=True,
        )


def trade_off_curve(
    joint_module: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    budgets: Sequence[float] = BUDGETS,
    primals: Sequence[torch.Tensor | int] | None = None,
    static_lifetime_input_indices: Sequence[int] | None = None,
) -> TradeOffCurve:
    """Return how much is saved and recomputed under each of ``budgets``; with real ``primals``, also measure it."""
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
