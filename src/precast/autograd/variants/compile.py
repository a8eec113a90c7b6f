"""The steps of a compilation, from one real call to a compiled variant.

Before: ``function(*args, **kwargs)`` over real tensors, Python that may mutate, alias and need gradients
After:  ``CompiledVariant.run(values)`` with ``values`` the module state and the leaves of a call that fits::

    compile_call            analyze_call          capture, and what the function mutates and aliases
      _compile_overlapping                        inputs that share memory merged into one
        compile_variant     trace_joint           the joint graph, or the forward alone (trace_inference)
                            partition             the forward and the backward graph
                            start_graph           each by its compiler, or from the cache
                            CallParts.assemble    a call with eager's effects and gradients
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.alias_regeneration import (
    TracedLayout,
    layout_of,
    regenerate_aliases,
    views_with_backwards,
)
from precast.autograd.boundary.autograd_function import reads_grad_mode
from precast.autograd.boundary.mutations import Update, keep_mutations, mark_updates
from precast.autograd.boundary.overlapping_inputs import written_parts
from precast.autograd.boundary.subclasses import by_value, plain_count
from precast.autograd.call_parts import BACKWARD, FORWARD, INFERENCE, CallParts, Job
from precast.autograd.compile_cache import start_graph
from precast.autograd.guards.changing_values import SizeRoots
from precast.autograd.guards.impure_reads import restored_chance
from precast.autograd.guards.sizes import SizeCheck
from precast.autograd.state_slots import ModuleSlots
from precast.autograd.uncaptured import NotCapturedError
from precast.autograd.variants.compiled import CompiledVariant, EagerVariant, Overlap, has_memory
from precast.autograd.variants.graphs import TracedGraph, trace_inference, trace_joint
from precast.autograd.variants.partial_backward import partial_backwards
from precast.autograd.variants.prepare import analyze_call
from precast.autograd.variants.training_facts import training_facts
from precast.errors import CaptureError
from precast.graph.boundary import BoundaryFacts, InputFacts, Relation
from precast.graph.nodes import mark_state, placeholders_of, value_of
from precast.trace.capture.number_inputs import NumberInputs
from precast.trace.capture.prepare import PreparedCall
from precast.trace.fake_inputs import FakeInputs
from precast.trace.functionalize import analyze
from precast.trace.record import FlatFunction
from precast.trace.session import tracing_session
from precast.trace.storages import memory_given_away, noted_memory


def compile_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    slots: ModuleSlots,
    job: Job,
    roots: SizeRoots,
    numbers: NumberInputs | None = None,
) -> tuple[CompiledVariant, CallParts | None]:
    """Compile the variant for one call; also returns its parts, unless overlapping inputs were merged.

    Raises ``NotCapturedError`` from any error of tracing.
    """
    with tracing_session(), restored_chance(), noted_memory():
        with _capturing():
            analyzed = analyze_call(function, args, kwargs, slots, roots, numbers)
        if analyzed.impure_reads:
            return EagerVariant.of(function, analyzed.guards, analyzed.impure_reads), None
        prepared = analyzed.prepared
        memory = {i: fact.memory_asked for i, fact in enumerate(analyzed.facts.inputs) if fact.memory_asked is not None}
        if not has_memory(analyzed.tensors, memory):
            raise NotCapturedError(memory_given_away())
        with _capturing():
            overlap = Overlap.of(analyzed.tensors, analyzed.facts.updated, written_parts(analyzed.facts.inputs))
        replaced = slots.numbers_of(prepared.exchanged)
        static_inputs = tuple(i for i in range(len(slots) or len(job.static_inputs)) if i not in replaced)
        job = replace(job, static_inputs=static_inputs, module_names=prepared.module_names)
        call, parts = _compile_overlapping(
            analyzed.flat, analyzed.tensors, analyzed.fakes, analyzed.facts, overlap, prepared.fakes, job
        )
        with _capturing():
            overlap = _with_late_updates(overlap, analyzed.tensors, parts)
    variant = CompiledVariant(
        call=call,
        places=_places_of_values(prepared, analyzed.places, len(slots)),
        state_count=len(slots),
        captured=analyzed.captured,
        captured_key=CompiledVariant.key_of(
            analyzed.tensors, [*analyzed.captured.read(), *analyzed.gradients.read(analyzed.tensors)], analyzed.outputs
        ),
        sizes=SizeCheck.of(prepared.fakes.sizes(), _expected_sizes(prepared, len(slots), roots)) if roots else None,
        overlap=overlap,
        outputs=analyzed.outputs,
        guards=analyzed.guards,
        gradients=analyzed.gradients,
        replaces_state=bool(replaced),
        memory_asked=memory,
        asked=analyzed.asked,
        asked_key=analyzed.asked.key(analyzed.tensors),
    )
    return variant, parts


def _compile_overlapping(
    function: FlatFunction,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[Any],
    facts: BoundaryFacts,
    overlap: Overlap,
    fakes: FakeInputs,
    job: Job,
) -> tuple[FlatCall, CallParts | None]:
    """Compile over inputs that do not overlap, and wrap the result for inputs that do."""
    if not overlap.plans:
        parts = compile_variant(function, inputs, fakes, facts, job)
        second_order = job.second_order(function, facts) if parts.training else None
        return parts.assemble(job.compilation, second_order), parts
    plan, *others = overlap.plans
    known = {id(tensor): value for tensor, value in zip(tensors, inputs, strict=True)}
    merged = plan.function(function)
    with _capturing():
        kept = plan.inputs(tensors)
        kept_fakes = [known[id(tensor)] if id(tensor) in known else fakes.fake(tensor) for tensor in kept]
        with fakes.unrecorded():
            merged_facts = analyze(merged, kept_fakes, fakes.mode)
    remaining = replace(overlap, duplicates=None, bases=overlap.bases if others else None)
    # The merge changes positions of state; static_inputs is only a hint for the partitioner.
    job = replace(job, static_inputs=())
    call, _ = _compile_overlapping(merged, kept, kept_fakes, merged_facts, remaining, fakes, job)
    return plan.call(call), None


def compile_variant(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> CallParts:
    """Trace, partition and compile ``function`` for the fake ``inputs``. Must run inside a ``tracing_session``.

    Raises ``NotCapturedError`` from any error of tracing: the backward runs here for the first time.
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
        starting=tuple(i for i, fact in enumerate(facts.inputs) if fact.starts_requiring_grad),
        stopping=tuple(i for i, fact in enumerate(facts.inputs) if fact.stops_requiring_grad),
        regenerate=partial(regenerate_aliases, facts=facts, fakes=inputs) if is_made_again else None,
    )


def _inference_parts(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> tuple[CallParts, BoundaryFacts]:
    """The parts of an inference call, and the facts that remain to be handled around its graph."""
    traced = _trace(trace_inference, function, inputs, fakes, facts, job)
    is_functional = not job.compilers.disable_functionalization
    if job.compilers.keep_inference_input_mutations and is_functional and not any((*traced.inputs, *traced.results)):
        facts = keep_mutations(traced.module, facts)
        traced = replace(traced, results=(None,) * len(facts.values))
    _mark_state(traced, facts, job)
    if is_functional and not any((*traced.inputs, *traced.results)):
        mark_updates(traced.module.graph, facts)
    compiled = start_graph(job.compilers.inference, traced.module, job.compilation.graph_name(INFERENCE))()
    # Inputs require grad, but the program hides what it does with them from autograd (no_grad blocks, detach).
    hides_gradients = torch.is_grad_enabled() and any(fact.gets_gradient for fact in facts.inputs)
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
    with _capturing():
        return trace(
            function,
            inputs,
            fakes,
            facts,
            decompositions=job.compilers.decompositions,
            module_names=job.module_names,
            is_functional=not job.compilers.disable_functionalization,
        )


@contextmanager
def _capturing() -> Iterator[None]:
    """What raises here is the program or what it is called with, not a compiler: it may run in Python instead."""
    try:
        yield
    except Exception as error:
        raise NotCapturedError(error) from error


def _mark_state(traced: TracedGraph, facts: BoundaryFacts, job: Job) -> None:
    """Mark the placeholders of inputs that stay the same from call to call, for compilers."""
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
    writes = job.compilers.disable_functionalization
    training = training_facts(traced, forward, backward, facts, writes=writes)
    if not (writes or any((*traced.inputs, *traced.results))):
        mark_updates(forward.graph, facts, needed=training.relevant)
    # Both are started before either is waited for.
    finish_forward = start_graph(job.compilers.forward, forward, job.compilation.graph_name(FORWARD))
    finish_backward = start_graph(job.compilers.backward, backward, job.compilation.graph_name(BACKWARD))
    return CallParts(
        {FORWARD: finish_forward(), BACKWARD: finish_backward()},
        {FORWARD: (traced.inputs, results), BACKWARD: (traced.tangents, gradients)},
        training=training,
        reads_grad_mode=reads_grad_mode(forward.graph),
        partial=partial_backwards(function, inputs, fakes, facts, job, training),
        views=views_with_backwards(facts, inputs),
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


def _updates_of(facts: BoundaryFacts, fakes: Sequence[Any]) -> tuple[Update, ...]:
    """The program's updates of inputs; ``fakes`` are the inputs that it was traced with."""
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


def _with_late_updates(overlap: Overlap, tensors: Sequence[torch.Tensor], parts: CallParts | None) -> Overlap:
    """The overlap including inputs that the backward writes into, which must not share memory with others."""
    if parts is None or parts.training is None or not parts.training.late_updates:
        return overlap
    overlap = Overlap.of(tensors, tuple(sorted({*overlap.written, *parts.training.late_updates})), overlap.parts)
    if overlap.plans:
        raise CaptureError(
            "The backward writes into a tensor that shares memory with another input.",
            why="the other one would not change with it",
            fix="Pass tensors that share no memory, or copies.",
        )
    return overlap


def _places_of_values(prepared: PreparedCall, places: Sequence[int], state_count: int) -> tuple[int, ...]:
    """The positions of the tensors among a call's values, which are only the module state and the leaves."""
    state_end = len(prepared.state)
    leaves_end = state_end + len(prepared.call.leaves)
    before = [place for place in places if place < state_count]
    after = [place - state_end + state_count for place in places if state_end <= place < leaves_end]
    return (*before, *after)


def _expected_sizes(prepared: PreparedCall, state_count: int, roots: SizeRoots) -> dict[int, list[int | str]]:
    return {
        state_count + number: [roots.get((number, dimension), size) for dimension, size in enumerate(leaf.shape)]
        for number, leaf in enumerate(prepared.call.leaves)
        if isinstance(leaf, torch.Tensor)
    }
