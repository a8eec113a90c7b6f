"""Which values the backward may recompute, and why: one table of rules.

The first rule that matches a node decides. ``COSTLY`` ops are recomputed only if a memory budget requires it.

Recipes recompute a value by another op than its own. Dropout draws random numbers, but its result can be computed from
its input and its mask::

    getitem   = native_dropout(x, p)[0]          =        native_dropout_backward(x, mask, 1 / (1 - p))
    mask      = native_dropout(x, p)[1]

A recipe must return exactly the same bits as the op itself.
"""

import enum
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from precast.ops.cost import bytes_of
from precast.ops.facts import Fact, facts_of, is_compute_intensive, is_pure, is_random, is_reduction, is_view
from precast.partition.classify import JointGraph, NodeSet, is_item_of_tuple, is_symbolic
from precast.partition.replay import may_be_replayed
from precast.partition.storage import storage_root

_aten = torch.ops.aten
# In narrower dtypes the kernel keeps more precision between its two multiplications than two ops would.
_DROPOUT_DTYPES = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True)
class Recipe:
    """A call that computes a value from other operands than its own node."""

    op: OpOverload
    args: tuple[fx.Node | float, ...]


def recipe_of(node: fx.Node) -> Recipe | None:
    """Return another way to compute ``node``, if there is one that is exact."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    dropout = node.args[0]
    if not isinstance(dropout, fx.Node) or dropout.target is not _aten.native_dropout.default:
        return None
    x, probability, *train = dropout.args
    value = node.meta.get("val")
    mask = next((user for user in dropout.users if user.args[1:] == (1,)), None)
    if mask is None or not isinstance(x, fx.Node) or not isinstance(probability, float) or not 0 < probability < 1:
        return None
    if train == [False] or not isinstance(value, torch.Tensor):
        return None
    if value.device.type != "cpu" or value.dtype not in _DROPOUT_DTYPES:
        return None
    return Recipe(_aten.native_dropout_backward.default, (x, mask, 1 / (1 - probability)))


def operands_to_recompute(node: fx.Node) -> list[fx.Node]:
    """Return the operands needed to recompute ``node``."""
    recipe = recipe_of(node)
    if recipe is None:
        return node.all_input_nodes
    return [argument for argument in recipe.args if isinstance(argument, fx.Node)]


# The longest chain of recomputed ops behind a value. Recomputed values stay alive until the backward reads them, so a
# long chain would only move memory from "saved" to "recomputed".
LONGEST_CHAIN = 24
# A reduction whose result is this many times smaller than its input is better saved than recomputed.
REDUCTION_FACTOR = 4

_EQUALITIES = frozenset({torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor})
_WANT_RECOMPUTE = frozenset({CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE})


class Recompute(enum.Enum):
    """How readily a value is recomputed in the backward."""

    FREE = "free"
    CHEAP = "cheap"
    COSTLY = "costly"
    ASKED = "asked for"
    NEVER = "never"


@dataclass(frozen=True)
class Verdict:
    """Whether a value may be recomputed, and the reason to report."""

    recompute: Recompute
    reason: str


def checkpoint_policy(node: fx.Node) -> CheckpointPolicy | None:
    """Return the policy of ``torch.utils.checkpoint`` for a node, if there is one."""
    policy = node.meta.get("recompute")
    return policy if isinstance(policy, CheckpointPolicy) else None


def judge(joint: JointGraph) -> dict[fx.Node, Verdict]:
    """Return the verdict on every forward node; a value behind too long a chain of recomputed ones is costly."""
    verdicts: dict[fx.Node, Verdict] = {}
    depth: dict[fx.Node, int] = {}
    for node, verdict in _verdicts_by_rule(joint).items():
        behind = max((depth[operand] for operand in node.all_input_nodes), default=0)
        depth[node] = behind + (verdict.recompute is Recompute.CHEAP)
        if depth[node] > LONGEST_CHAIN and verdict.recompute is Recompute.CHEAP:
            verdict = Verdict(Recompute.COSTLY, f"behind {LONGEST_CHAIN} recomputed ops, far from any saved value")
        if verdict.recompute in (Recompute.COSTLY, Recompute.NEVER):
            depth[node] = 0
        verdicts[node] = verdict
    return verdicts


def judge_by_checkpoints_alone(joint: JointGraph) -> dict[fx.Node, Verdict]:
    """Return the verdicts under which only views and checkpoint regions are recomputed."""
    kept = Verdict(Recompute.NEVER, "outside of checkpoint regions")
    unchanged = (Recompute.FREE, Recompute.ASKED)
    verdicts = _verdicts_by_rule(joint)
    return {node: verdict if verdict.recompute in unchanged else kept for node, verdict in verdicts.items()}


def has_checkpoints(joint: JointGraph) -> bool:
    """Whether any forward node is in a checkpoint region that wants it recomputed."""
    return any(checkpoint_policy(node) in _WANT_RECOMPUTE for node in joint.forward)


def _verdicts_by_rule(joint: JointGraph) -> dict[fx.Node, Verdict]:
    leaving = _roots_leaving_their_region(joint) if has_checkpoints(joint) else frozenset()
    verdicts = {}
    for node in joint.in_order(joint.forward):
        verdict = next(Verdict(recompute, reason) for fits, recompute, reason in _RULES if fits(node))
        if verdict.recompute is Recompute.ASKED and node in leaving:
            verdict = Verdict(Recompute.COSTLY, "leaves a checkpoint region")
        verdicts[node] = verdict
    return verdicts


def _roots_leaving_their_region(joint: JointGraph) -> NodeSet:
    """Return the values that leave a checkpoint region: another region, or the forward outside, reads them."""
    leaving = set()
    for node in joint.forward:
        region = node.meta.get("ac_graph_id")
        readers = [user for user in node.users if user in joint.forward]
        if any(user.meta.get("ac_graph_id") != region or not _is_in_region(user) for user in readers):
            leaving.add(storage_root(node))
    return frozenset(leaving)


def _is_in_region(node: fx.Node) -> bool:
    return checkpoint_policy(node) is not None or is_item_of_tuple(node) or is_symbolic(node)


def _makes_symbols(node: fx.Node) -> bool:
    return bool(node.meta.get("unbacked_bindings")) or Fact.DATA_DEPENDENT in facts_of(node)


def _is_small_reduction(node: fx.Node) -> bool:
    read = sum(bytes_of(operand.meta.get("val")) for operand in node.all_input_nodes)
    return is_reduction(node) and bytes_of(node.meta.get("val")) * REDUCTION_FACTOR < read


def _is_compared(node: fx.Node) -> bool:
    """Whether the value, or a view of it, is compared for equality, as in the gradient of ``amax``."""
    return any(user.target in _EQUALITIES or (is_view(user) and _is_compared(user)) for user in node.users)


def _is_computed_in_floats(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not is_view(node)


def _is_free(node: fx.Node) -> bool:
    return node.op == "get_attr" or is_view(node) or is_item_of_tuple(node) or is_symbolic(node)


def _is_cheap(node: fx.Node) -> bool:
    cheap = {Fact.POINTWISE, Fact.COPY, Fact.CREATION, Fact.NORMALIZATION, Fact.REDUCTION}
    return not facts_of(node).isdisjoint(cheap)


def _is_marked(*names: str) -> Callable[[fx.Node], bool]:
    """Match policies by name, since older versions of torch lack some. Values to be offloaded are saved here."""
    return lambda node: (policy := checkpoint_policy(node)) is not None and policy.name in names


_RULES: tuple[tuple[Callable[[fx.Node], bool], Recompute, str], ...] = (
    (lambda node: node.op == "placeholder", Recompute.NEVER, "input of the forward"),
    (lambda node: not is_pure(node), Recompute.NEVER, "acts beyond its results"),
    (_makes_symbols, Recompute.NEVER, "its size depends on values"),
    (lambda node: is_random(node) and not may_be_replayed(node), Recompute.NEVER, "its draw cannot be replayed"),
    (_is_marked("MUST_SAVE", "MUST_CPU_OFFLOAD"), Recompute.NEVER, "a checkpoint policy says it must be saved"),
    # Recomputed sums may be added up in another order: then a maximum might equal none of its elements.
    (
        lambda node: _is_computed_in_floats(node) and _is_compared(node),
        Recompute.NEVER,
        "compared bit by bit with what was computed from it",
    ),
    (lambda node: recipe_of(node) is not None, Recompute.CHEAP, "follows from what is saved anyway"),
    (_is_free, Recompute.FREE, "moves no bytes"),
    (lambda node: checkpoint_policy(node) in _WANT_RECOMPUTE, Recompute.ASKED, "inside a checkpoint region"),
    (_is_marked("PREFER_SAVE", "PREFER_CPU_OFFLOAD"), Recompute.COSTLY, "a checkpoint policy prefers to save it"),
    (is_random, Recompute.COSTLY, "draws random numbers"),
    (is_compute_intensive, Recompute.COSTLY, "compute-intensive"),
    (_is_small_reduction, Recompute.COSTLY, "a reduction, small to save"),
    (_is_cheap, Recompute.CHEAP, "cheap to recompute"),
    (lambda _: True, Recompute.COSTLY, "not known to be cheap"),
)
