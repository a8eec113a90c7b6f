"""Derives the facts that a training call needs from its graphs: aliasing results, primals that gradients depend on."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary.autograd_function import TrainingFacts
from precast.autograd.boundary.subclasses import by_value, plain_count
from precast.autograd.variants.graphs import TracedGraph
from precast.graph.boundary import BoundaryFacts, Relation
from precast.graph.nodes import placeholders_of, results_of, value_of
from precast.ops.cost import size_hint
from precast.partition.saved_values import identities_of_saved


def training_facts(
    traced: TracedGraph, forward: fx.GraphModule, backward: fx.GraphModule, facts: BoundaryFacts, *, writes: bool
) -> TrainingFacts:
    """The facts of a joint graph that was split into ``forward`` and ``backward``."""
    count = len(facts.tangents)
    results = traced.results[:count]
    returned = results_of(forward.graph)
    saved = [node for node in returned[plain_count(results) :] if isinstance(node, fx.Node)]
    return TrainingFacts(
        result_count=count,
        saved_tensor_count=sum(isinstance(value_of(node), torch.Tensor) for node in saved),
        differentiable=facts.tangents,
        opaque=_opaque_results(facts),
        detached=_repeated_results(by_value(returned, results), facts),
        tangent_orders=_tangent_orders(facts),
        relevant=_primals_in_gradients(traced, plain_count(results)),
        updated=facts.updated,
        is_random=facts.is_random,
        late_updates=traced.late_updates,
        saved=identities_of_saved(traced.module, backward) if sum(facts.tangents) > 1 else (),
        writes=writes,
        laid_out=tuple(number for number in facts.updated if facts.inputs[number].mutates_metadata),
    )


def _opaque_results(facts: BoundaryFacts) -> tuple[bool, ...]:
    aliases = [fact.relation is not Relation.FRESH for fact in facts.outputs]
    return (*(False,) * len(facts.updated), *aliases, *(False,) * len(facts.base_requires_grad))


def _repeated_results(results: Sequence[Sequence[Any]], facts: BoundaryFacts) -> tuple[bool, ...]:
    """Which results the graph returns more than once, or, for an update, returns an input unchanged."""
    opaque = _opaque_results(facts)
    visible = [parts for parts, is_opaque in zip(results, opaque, strict=True) if not is_opaque]

    def is_repeated(number: int, parts: Sequence[Any]) -> bool:
        if opaque[number] or not all(
            isinstance(part, fx.Node) and isinstance(value_of(part), torch.Tensor) for part in parts
        ):
            return False
        is_update = number < len(facts.updated)
        return visible.count(parts) > 1 or (is_update and any(part.op == "placeholder" for part in parts))

    return tuple(is_repeated(number, parts) for number, parts in enumerate(results))


def _tangent_orders(facts: BoundaryFacts) -> tuple[tuple[int, ...] | None, ...]:
    with_tangent = [value for value, wanted in zip(facts.values, facts.tangents, strict=True) if wanted]
    return tuple(_memory_order(value) for value in with_tangent)


def _memory_order(value: Any) -> tuple[int, ...] | None:
    """The dimensions of a dense tensor like ``value``, from outermost to innermost; ``None`` for contiguous ones."""
    strides: Sequence[Any] = torch.empty_like(value, requires_grad=False).stride()
    order = sorted(range(len(strides)), key=lambda dim: -size_hint(strides[dim]))
    return None if order == sorted(order) else tuple(order)


def _primals_in_gradients(traced: TracedGraph, plain_results: int) -> tuple[int, ...]:
    """The numbers of the tensor primals that any gradient is computed from."""
    waiting = [node for node in results_of(traced.module.graph)[plain_results:] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(node.all_input_nodes)
    primals = by_value(placeholders_of(traced.module.graph)[: plain_count(traced.inputs)], traced.inputs)
    return tuple(
        number
        for number, parts in enumerate(primals)
        if any(part in seen and isinstance(value_of(part), torch.Tensor) for part in parts)
    )
