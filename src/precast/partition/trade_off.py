"""What each memory budget costs in recomputation: the curve to choose a budget from.

How much memory a half needs at once, by the lifetimes of its values.

A small line drawing as SVG text.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import fx

from precast.ops.cost import bytes_of
from precast.partition.min_cut import Problem, decide, pose
from precast.partition.split import split
from precast.partition.storage import storage_root


def estimated_peak_bytes(module: fx.GraphModule, *, held: Collection[str] = ()) -> int:
    """Return the most bytes alive at once while ``module`` runs, each value freed after its last use.

    Inputs named in ``held`` belong to the caller and do not count; the others count until last read.
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
    # A tuple counts by its items, which live and die one by one.
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

    By default all primals are taken to stay alive anyway.
    """
    with torch.no_grad():
        saved = forward(*primals)[num_fwd_outputs:]
    alive = primals if held is None else [primals[number] for number in held]
    inputs = {value.untyped_storage().data_ptr() for value in alive if isinstance(value, torch.Tensor)}
    storages = [value.untyped_storage() for value in saved if isinstance(value, torch.Tensor)]
    kept = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in inputs}
    return sum(kept.values())


_WIDTH, _HEIGHT, _MARGIN = 640, 400, 70
_STYLE = "font-family:sans-serif;font-size:12px"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def plot_steps(points: Sequence[tuple[float, float]], *, title: str, x_label: str, y_label: str) -> str:
    """Return an SVG of ``points`` joined in order of x, both axes starting at zero."""
    ordered = sorted(points)
    right = max((x for x, _ in ordered), default=0) or 1
    top = max((y for _, y in ordered), default=0) or 1
    placed = [(_place(x / right, _WIDTH), _HEIGHT - _place(y / top, _HEIGHT)) for x, y in ordered]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{_short(value[0])}, {_short(value[1])}</title></circle>'
        for (x, y), value in zip(placed, ordered, strict=True)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" style="{_STYLE}">',
            _text(_WIDTH / 2, 24, title),
            _text(_WIDTH / 2, _HEIGHT - 20, f"{x_label} (up to {_short(right)})"),
            _text(_MARGIN, _MARGIN - 18, f"{y_label} (up to {_short(top)})"),
            f'<path d="M{_MARGIN},{_MARGIN} V{_HEIGHT - _MARGIN} H{_WIDTH - _MARGIN}" fill="none" stroke="gray"/>',
            f'<polyline points="{line}" fill="none" stroke="black"/>',
            *marks,
            "</svg>",
        ]
    )


def _place(share: float, length: int) -> float:
    return _MARGIN + share * (length - 2 * _MARGIN)


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{escape(words)}</text>'


def _short(value: float) -> str:
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


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
