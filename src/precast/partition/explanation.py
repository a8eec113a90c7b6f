"""Why each tensor is saved and each op recomputed, as data and as a table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import fx

from precast.graph.nodes import SourceLine, source_line_of
from precast.ops.cost import bytes_moved, bytes_of, elements_of, flops
from precast.ops.facts import op_name
from precast.partition.classify import JointGraph, is_item_of_tuple, is_symbolic
from precast.partition.policy import Recompute, Verdict, recipe_of
from precast.partition.replay import state_bytes, state_name
from precast.partition.split import nodes_of_backward, replayed_nodes
from precast.partition.storage import storage_root

_META_KEY = "precast_partition_explanation"


@dataclass(frozen=True)
class SavedTensor:
    """A tensor saved for the backward, the memory that it keeps alive, and why it is not recomputed."""

    name: str
    bytes: int
    reason: str
    source_line: SourceLine | None


@dataclass(frozen=True)
class RecomputedOp:
    """An op that the backward recomputes, why it may, and what that costs."""

    name: str
    op: str
    reason: str
    flops: int
    bytes_moved: int
    source_line: SourceLine | None


@dataclass(frozen=True)
class PartitionExplanation:
    """The decisions of a partition; ``allowed_bytes`` is what the budget allows."""

    saved: tuple[SavedTensor, ...]
    recomputed: tuple[RecomputedOp, ...]
    saved_bytes: int
    default_bytes: int
    allowed_bytes: int

    @property
    def recomputed_flops(self) -> int:
        """Return the number of floating-point operations that the backward repeats."""
        return sum(op.flops for op in self.recomputed)

    @property
    def is_within_budget(self) -> bool:
        """Return whether the saved bytes are within the budget."""
        return self.saved_bytes <= self.allowed_bytes

    def as_table(self) -> str:
        """Return the explanation as a text table, largest values first."""
        saved = sorted(self.saved, key=lambda tensor: -tensor.bytes)
        recomputed = sorted(self.recomputed, key=lambda op: -op.flops)
        return "\n".join(
            [
                f"saved: {self.saved_bytes:,} bytes (default partition: {self.default_bytes:,})",
                *_aligned([(t.name, f"{t.bytes:,}", t.reason, _line_text(t.source_line)) for t in saved]),
                f"recomputed: {self.recomputed_flops:,} FLOPs",
                *_aligned([(op.name, f"{op.flops:,}", op.reason, _line_text(op.source_line)) for op in recomputed]),
            ]
        )


def attach_explanation(forward: fx.GraphModule, explanation: PartitionExplanation) -> None:
    """Attach the explanation of its partition to a forward module."""
    forward.meta[_META_KEY] = explanation


def explanation_of(forward: fx.GraphModule) -> PartitionExplanation:
    """Return what the partition that made ``forward`` saves and recomputes, with the reason for each value."""
    explanation = forward.meta[_META_KEY]
    assert isinstance(explanation, PartitionExplanation)
    return explanation


def explain(
    joint: JointGraph,
    saved: Collection[fx.Node],
    verdicts: Mapping[fx.Node, Verdict],
    *,
    held: Collection[fx.Node],
    default_bytes: int,
    allowed_bytes: int,
) -> PartitionExplanation:
    """Return the reasons for saving ``saved`` and recomputing the rest."""
    computed = joint.in_order(nodes_of_backward(joint, saved) & joint.forward)
    tensors = [_saved_tensor(node, verdicts, held) for node in saved if not is_symbolic(node)]
    states = [_saved_state(node) for node in replayed_nodes(joint, computed)]
    working = [node for node in computed if verdicts[node].recompute is not Recompute.FREE]
    return PartitionExplanation(
        saved=(*tensors, *states),
        recomputed=tuple(_recomputed_op(node, verdicts[node]) for node in working),
        saved_bytes=sum(tensor.bytes for tensor in (*tensors, *states)),
        default_bytes=default_bytes,
        allowed_bytes=allowed_bytes,
    )


def _saved_tensor(node: fx.Node, verdicts: Mapping[fx.Node, Verdict], held: Collection[fx.Node]) -> SavedTensor:
    root = storage_root(node)
    kept = 0 if root in held else bytes_of(root.meta.get("val"))
    maker = node.all_input_nodes[0] if is_item_of_tuple(node) else node
    return SavedTensor(node.name, kept, _reason_to_save(node, verdicts.get(maker), root in held), source_line_of(maker))


def _reason_to_save(node: fx.Node, verdict: Verdict | None, is_held: bool) -> str:
    if is_held:
        return "an input, alive anyway" if node.op == "placeholder" else "a view of an input, alive anyway"
    if verdict is not None and verdict.recompute in (Recompute.COSTLY, Recompute.NEVER):
        return verdict.reason
    return "smaller than what it is computed from"


def _saved_state(node: fx.Node) -> SavedTensor:
    return SavedTensor(state_name(node), state_bytes(node), f"replays the draw of {node.name}", source_line_of(node))


def _recomputed_op(node: fx.Node, verdict: Verdict) -> RecomputedOp:
    pressed = verdict.recompute is Recompute.COSTLY
    reason = f"the budget asks for it ({verdict.reason})" if pressed else verdict.reason
    recipe = recipe_of(node)
    if recipe is None:
        op, work = op_name(node.target), flops(node)
    else:
        op, work = op_name(recipe.op), elements_of(node.meta.get("val"))
    return RecomputedOp(node.name, op, reason, work, bytes_moved(node), source_line_of(node))


def _aligned(rows: list[tuple[str, str, str, str]]) -> list[str]:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        f"  {name:<{widths[0]}}  {amount:>{widths[1]}}  {reason:<{widths[2]}}  {line}".rstrip()
        for name, amount, reason, line in rows
    ]


def _line_text(line: SourceLine | None) -> str:
    return str(line) if line else ""
