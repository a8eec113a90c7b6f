"""Compiles one variant of a flat function: for inputs of these kinds, under this grad mode.

Before: ``function(flat inputs) -> flat outputs``, Python that may mutate, alias and need gradients
After:  ``CallParts``: compiled functional graphs, and what a call has to do around them to behave the same
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary.alias_regeneration import TracedLayout, layout_of, regenerate_aliases
from precast.autograd.boundary.autograd_function import TrainingFacts, reads_grad_mode
from precast.autograd.boundary.mutations import Update, keep_mutations, mark_updates
from precast.autograd.boundary.subclasses import by_value, plain_count
from precast.autograd.call_parts import BACKWARD, FORWARD, INFERENCE, CallParts, Job
from precast.autograd.compile_cache import start_graph
from precast.autograd.uncaptured import NotCapturedError
from precast.autograd.variants.graphs import TracedGraph, trace_inference, trace_joint
from precast.autograd.variants.partial_backward import partial_backwards
from precast.graph.boundary import BoundaryFacts, InputFacts, Relation
from precast.graph.nodes import mark_state, placeholders_of, results_of, value_of
from precast.ops.cost import size_hint
from precast.partition.saved_values import identities_of_saved
from precast.trace.fake_inputs import FakeInputs
from precast.trace.record import FlatFunction


def compile_variant(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> CallParts:
    """Trace, split and compile ``function`` for the fake ``inputs``. Must run inside a ``tracing_session``.

    Raises ``NotCapturedError`` around whatever comes out of tracing: the backward is run here for the first time.
    """
    if facts.is_differentiable:
        parts = _training_parts(function, inputs, fakes, facts, job)
    else:
        parts, facts = _inference_parts(function, inputs, fakes, facts, job)
    is_made_again = any(
        fact.relation is not Relation.FRESH or fact.is_leaf or (fact.needs_tangent and not facts.is_differentiable)
        for fact in facts.outputs
    )
    return replace(
        parts,
        updates=_updates_of(facts, inputs),
        memory_bytes={i: fact.memory_bytes for i, fact in enumerate(facts.inputs) if fact.memory_bytes is not None},
        regenerate=partial(regenerate_aliases, facts=facts, fakes=inputs) if is_made_again else None,
    )


def _inference_parts(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> tuple[CallParts, BoundaryFacts]:
    """The call of the forward alone, and what is left to do around it."""
    traced = _trace(trace_inference, function, inputs, fakes, facts, job)
    is_functional = not job.compilers.disable_functionalization
    if job.compilers.keep_inference_input_mutations and is_functional and not any((*traced.inputs, *traced.results)):
        facts = keep_mutations(traced.module, facts)
        traced = replace(traced, results=(None,) * len(facts.values))
    _mark_state(traced, facts, job)
    if is_functional and not any((*traced.inputs, *traced.results)):
        mark_updates(traced.module.graph, facts)
    compiled = start_graph(job.compilers.inference, traced.module, job.compilation.graph_name(INFERENCE))()
    # The program itself kept autograd from seeing what it does with them (no_grad blocks, detach).
    hides_gradients = torch.is_grad_enabled() and any(fact.requires_grad for fact in facts.inputs)
    parts = CallParts(
        {INFERENCE: compiled}, {INFERENCE: (traced.inputs, traced.results)}, outside_autograd=hides_gradients
    )
    return parts, facts


def _trace(
    trace: Callable[..., TracedGraph],
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    job: Job,
) -> TracedGraph:
    try:
        return trace(
            function,
            inputs,
            fakes,
            facts,
            decompositions=job.compilers.decompositions,
            module_names=job.module_names,
            is_functional=not job.compilers.disable_functionalization,
        )
    except Exception as error:
        raise NotCapturedError(error) from error


def _mark_state(traced: TracedGraph, facts: BoundaryFacts, job: Job) -> None:
    """Tell compilers which inputs stay the same from call to call."""
    parts = by_value(placeholders_of(traced.module.graph), traced.inputs)
    for number in job.static_inputs:
        for node in parts[number] if number not in facts.updated else ():
            mark_state(node)


def _training_parts(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> CallParts:
    traced = _trace(trace_joint, function, inputs, fakes, facts, job)
    count = len(facts.tangents)
    results, gradients = traced.results[:count], traced.results[count:]
    forward, backward = _partition(traced, plain_count(results), job)
    returned = results_of(forward.graph)
    saved = [node for node in returned[plain_count(results) :] if isinstance(node, fx.Node)]
    training = TrainingFacts(
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
        writes=job.compilers.disable_functionalization,
    )
    if not (job.compilers.disable_functionalization or any((*traced.inputs, *traced.results))):
        mark_updates(forward.graph, facts, needed=training.relevant)
    # Both are begun before either is waited for.
    finish_forward = start_graph(job.compilers.forward, forward, job.compilation.graph_name(FORWARD))
    finish_backward = start_graph(job.compilers.backward, backward, job.compilation.graph_name(BACKWARD))
    return CallParts(
        {FORWARD: finish_forward(), BACKWARD: finish_backward()},
        {FORWARD: (traced.inputs, results), BACKWARD: (traced.tangents, gradients)},
        training=training,
        reads_grad_mode=reads_grad_mode(forward.graph),
        partial=partial_backwards(function, inputs, fakes, facts, job, training),
    )


def _partition(traced: TracedGraph, plain_results: int, job: Job) -> tuple[fx.GraphModule, fx.GraphModule]:
    examples = [value_of(node) for node in placeholders_of(traced.module.graph)]
    split = plain_count(traced.inputs)
    plain_places = by_value(range(split), traced.inputs)
    return job.compilers.partition(
        traced.module,
        (examples[:split], examples[split:]),
        num_fwd_outputs=plain_results,
        static_lifetime_input_indices=[place for number in job.static_inputs for place in plain_places[number]],
    )


def _opaque_results(facts: BoundaryFacts) -> tuple[bool, ...]:
    aliases = [fact.relation is not Relation.FRESH for fact in facts.outputs]
    return (*(False,) * len(facts.updated), *aliases, *(False,) * len(facts.base_requires_grad))


def _repeated_results(results: Sequence[Sequence[Any]], facts: BoundaryFacts) -> tuple[bool, ...]:
    """Results that the graph returns more than once, and updates that it takes from an input as it is."""
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
    """The dimensions of a dense tensor like ``value``, from outermost to innermost; ``None`` for their own order."""
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


def _updates_of(facts: BoundaryFacts, fakes: Sequence[Any]) -> tuple[Update, ...]:
    """The updates that a program makes; ``fakes`` are the inputs that it was traced with."""
    return tuple(
        Update(number, facts.inputs[number], _new_layout(facts.inputs[number], value, fakes[number], fakes))
        for number, value in zip(facts.updated, facts.values, strict=False)
    )


def _new_layout(
    facts: InputFacts, value: torch.Tensor, before: torch.Tensor, fakes: Sequence[Any]
) -> TracedLayout | None:
    if facts.replaces_storage or not facts.mutates_metadata:
        return None
    return layout_of(value, fakes, offset=value.storage_offset() - before.storage_offset())
