"""Partition a joint graph by a minimum cut over bytes: save little, recompute what is cheap.

Before::

    joint(primals_1, primals_2, primals_3, tangents_1):
        mm = mm(primals_1, primals_2); gelu = gelu(mm); mm_1 = mm(gelu, primals_3)
        ...                                                     # the backward reads mm and gelu

After::

    forward(primals_1, primals_2, primals_3):          backward(primals_…, mm, tangents_1):
        mm, gelu, mm_1 as before                           gelu = gelu(mm)
        return (mm_1, primals_…, mm)                       ...
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from precast.errors import MemoryBudgetError
from precast.partition.budget import budget_in_bytes, cut_within, is_absolute
from precast.partition.classify import JointGraph, NodeSet, classify
from precast.partition.explanation import PartitionExplanation, attach_explanation, explain
from precast.partition.network import Network, build_network
from precast.partition.policy import Verdict, judge
from precast.partition.read_values import values_read_by_backward
from precast.partition.split import split
from precast.partition.storage import held_primals, saved_bytes

_log = logging.getLogger(__name__)
_BLOCKERS_TOLD = 10


@dataclass(frozen=True)
class Problem:
    """A joint graph made ready to be cut at any budget."""

    joint: JointGraph
    verdicts: Mapping[fx.Node, Verdict]
    network: Network
    held: NodeSet
    default_bytes: int


@dataclass(frozen=True)
class Decision:
    """What to save, and why."""

    saved: tuple[fx.Node, ...]
    explanation: PartitionExplanation


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[object],
    *,
    num_fwd_outputs: int,
    memory_budget: float = 1.0,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_: object,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return a forward and a backward between which as few bytes as possible are saved.

    Without a budget only cheap ops are recomputed. ``memory_budget`` allows a fraction (a float up to 1) of the bytes
    that ``default_partition`` saves, or a number of bytes (a whole number above 1), and recomputes costly ops to stay
    within it. Never saves more than ``default_partition``. ``explanation_of(forward)`` tells the reasons.
    """
    problem = pose(
        joint_module,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
    )
    decision = decide(problem, memory_budget)
    forward, backward = split(problem.joint, decision.saved)
    attach_explanation(forward, decision.explanation)
    return forward, backward


def pose(
    joint_module: fx.GraphModule, *, num_fwd_outputs: int, static_lifetime_input_indices: Sequence[int] | None = None
) -> Problem:
    """Return all about a joint graph that does not depend on the budget."""
    joint = classify(joint_module, num_fwd_outputs=num_fwd_outputs)
    held = held_primals(joint, static_lifetime_input_indices)
    verdicts = judge(joint)
    return Problem(
        joint=joint,
        verdicts=verdicts,
        network=build_network(joint, verdicts, held=held),
        held=held,
        default_bytes=saved_bytes(values_read_by_backward(joint), held=held),
    )


def decide(problem: Problem, memory_budget: float) -> Decision:
    """Return what to save within a budget; refuse an absolute one that cannot be met."""
    allowed = budget_in_bytes(memory_budget, problem.default_bytes)
    cut = cut_within(problem.network, allowed)
    explanation = explain(
        problem.joint,
        cut.saved,
        problem.verdicts,
        held=problem.held,
        default_bytes=problem.default_bytes,
        allowed_bytes=allowed,
    )
    assert explanation.saved_bytes == cut.saved_bytes, "the network's bytes are those of the tensors it stands for"
    if not explanation.is_within_budget:
        if is_absolute(memory_budget):
            raise _unreachable(explanation)
        _log.info("the budget of %d bytes is out of reach; saving %d", allowed, explanation.saved_bytes)
    return Decision(cut.saved, explanation)


def _unreachable(explanation: PartitionExplanation) -> MemoryBudgetError:
    largest = sorted((tensor for tensor in explanation.saved if tensor.bytes), key=lambda tensor: -tensor.bytes)
    told = [
        f"{tensor.name}: {tensor.bytes:,} bytes, {tensor.reason}, {tensor.source_line or 'source line unknown'}"
        for tensor in largest[:_BLOCKERS_TOLD]
    ]
    rest = [f"and {len(largest) - _BLOCKERS_TOLD} smaller ones"] if len(largest) > _BLOCKERS_TOLD else []
    return MemoryBudgetError(
        f"a memory budget of {explanation.allowed_bytes:,} bytes cannot be met: "
        f"{explanation.saved_bytes:,} bytes have to be saved",
        why="\n       ".join(["these tensors stand in the way:", *told, *rest]),
        fix=f"allow at least {explanation.saved_bytes:,} bytes, or pass a fraction to come as close as possible",
    )
