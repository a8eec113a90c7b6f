"""Partition a joint graph by a minimum cut over bytes: save little, recompute what is cheap.

Before::

    joint(primals_1, primals_2, primals_3, tangents_1):
        mm = mm(primals_1, primals_2); gelu = gelu(mm); mm_1 = mm(gelu, primals_3)
        ...                                                     # the backward reads mm and gelu

After::

    forward(primals_1, primals_2, primals_3):          backward(primals_…, mm, tangents_1):
        mm, gelu, mm_1 as before                           gelu = gelu(mm)
        return (mm_1, primals_…, mm)                       ...

A memory budget is met by lowering the price of recomputation. Without a budget, costly ops have an unlimited price.
With one, prices fall level by level, and more becomes worth recomputing: first what saves most bytes for the least
work. Since every price falls, each cut recomputes everything that the previous one did, and saves no more: a smaller
budget never saves more than a larger one.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import fx

from precast.errors import MemoryBudgetError, OptionError
from precast.events import tell
from precast.ops.facts import is_mutating
from precast.partition.classify import JointGraph, NodeSet, classify
from precast.partition.default import default_partition, values_read_by_backward
from precast.partition.explanation import PartitionExplanation, attach_explanation, explain
from precast.partition.network import Cut, Network, build_network, minimum_cut
from precast.partition.policy import Verdict, judge
from precast.partition.split import split, with_fewest_sizes
from precast.partition.storage import held_primals, saved_bytes

# Prices fall by this factor per level: fine enough to separate layers that are almost equal.
_STEP = 1.0005
# Of two equal layers the earlier one is recomputed first: late in the backward, when most saved tensors are freed.
_PREFERENCE_FOR_EARLY = 0.1


def budget_in_bytes(memory_budget: float, default_bytes: int) -> int:
    """Return a budget in bytes: a fraction up to 1 is of ``default_bytes``, a whole number above 1 is bytes."""
    if isinstance(memory_budget, int) and not isinstance(memory_budget, bool) and memory_budget > 1:
        return memory_budget
    is_number = isinstance(memory_budget, int | float) and not isinstance(memory_budget, bool)
    if not is_number or not 0 <= memory_budget <= 1:
        raise OptionError(
            f"memory_budget={memory_budget!r} is neither a fraction nor a number of bytes",
            why="a fraction of what the default partition saves is between 0 and 1; bytes are a whole number above 1",
            fix="pass a float such as 0.5, or an int such as 512 * 2**20",
        )
    return int(memory_budget * default_bytes)


def is_absolute(memory_budget: float) -> bool:
    """Whether a budget is a number of bytes, which must be met, and not a fraction, which is a target."""
    return isinstance(memory_budget, int) and memory_budget > 1


def cut_within(network: Network, allowed_bytes: int) -> Cut:
    """Return the cut that recomputes least within ``allowed_bytes``; if there is none, the one that saves least."""
    cut = minimum_cut(network)
    if cut.saved_bytes <= allowed_bytes:
        return cut
    prices_at, last = _falling_prices(network)
    too_low, enough = 0, last
    best = minimum_cut(network, prices_at(last))
    if best.saved_bytes > allowed_bytes:
        return best
    while enough - too_low > 1:
        level = (too_low + enough) // 2
        cut = minimum_cut(network, prices_at(level))
        if cut.saved_bytes <= allowed_bytes:
            enough, best = level, cut
        else:
            too_low = level
    return best


def _falling_prices(network: Network) -> tuple[Callable[[int], NDArray[np.int64]], int]:
    """Return the prices at each level, and the last level, where all permitted recomputation is free."""
    early_first = 1 + _PREFERENCE_FOR_EARLY * np.linspace(0, 1, len(network.nodes))
    forbidden = np.isinf(network.work)
    work = np.where(forbidden, 0, network.work) * early_first
    least = work[work > 0].min(initial=1.0)
    start = network.unlimited / least
    last = max(1, math.ceil(math.log(start * max(work.max(initial=1.0), 1.0) * 2, _STEP)))

    def prices_at(level: int) -> NDArray[np.int64]:
        scaled = np.minimum(work * (start * _STEP**-level), float(network.unlimited)).astype(np.int64)
        priced = np.where(forbidden, network.unlimited, scaled + network.state_bytes)
        return np.minimum(network.prices, priced)

    return prices_at, last


_log = logging.getLogger(__name__)
_MOST_BLOCKERS = 10


@dataclass(frozen=True)
class Problem:
    """A joint graph prepared for cuts at any budget."""

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
    """Split a joint graph by a minimum cut, so that as few bytes as possible are saved for the backward.

    Without a budget only cheap operators are recomputed. ``memory_budget`` limits what is saved, as a fraction (a float
    up to 1) of the bytes that ``default_partition`` saves, or as a number of bytes (an int above 1); expensive
    operators are recomputed to stay within it. Never saves more than ``default_partition``. ``explanation_of(forward)``
    returns the reasons. In a graph with in-place operators nothing is recomputed, since a node might return another
    value then.
    """
    if any(is_mutating(node) for node in joint_module.graph.nodes if node.op == "call_function"):
        return default_partition(
            joint_module,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
        )
    problem = pose(
        joint_module,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
    )
    decision = decide(problem, memory_budget)
    forward, backward = split(problem.joint, decision.saved)
    attach_explanation(forward, decision.explanation)
    tell(decision.explanation)
    return forward, backward


def pose(
    joint_module: fx.GraphModule, *, num_fwd_outputs: int, static_lifetime_input_indices: Sequence[int] | None = None
) -> Problem:
    """Prepare everything about a joint graph that does not depend on the budget."""
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
    """Decide what to save within a budget; raise for an absolute one that cannot be met."""
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
    return Decision(tuple(with_fewest_sizes(problem.joint, cut.saved)), explanation)


def _unreachable(explanation: PartitionExplanation) -> MemoryBudgetError:
    largest = sorted((tensor for tensor in explanation.saved if tensor.bytes), key=lambda tensor: -tensor.bytes)
    blockers = [
        f"{tensor.name}: {tensor.bytes:,} bytes, {tensor.reason}, {tensor.source_line or 'source line unknown'}"
        for tensor in largest[:_MOST_BLOCKERS]
    ]
    rest = [f"and {len(largest) - _MOST_BLOCKERS} smaller ones"] if len(largest) > _MOST_BLOCKERS else []
    return MemoryBudgetError(
        f"a memory budget of {explanation.allowed_bytes:,} bytes cannot be met: "
        f"{explanation.saved_bytes:,} bytes have to be saved",
        why="\n       ".join(["these tensors stand in the way:", *blockers, *rest]),
        fix=f"allow at least {explanation.saved_bytes:,} bytes, or pass a fraction to come as close as possible",
    )
