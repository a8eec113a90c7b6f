"""Compiles one variant of a flat function: for inputs of these kinds, under this grad mode.

Before: ``function(flat inputs) -> flat outputs``, Python that may mutate, alias and need gradients
After:  a ``FlatCall`` that has the same effects and gradients over compiled functional graphs
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.alias_regeneration import regenerate_aliases
from precast.autograd.boundary.autograd_function import TrainingGraphs, differentiable_call
from precast.autograd.boundary.grad_mode_readers import in_grad_mode_if_read
from precast.autograd.boundary.kept_mutations import keep_mutations
from precast.autograd.boundary.mutation_epilogue import apply_updates
from precast.autograd.boundary.subclasses import by_value, over_wrappers, plain_count
from precast.autograd.compilers_in_use import CompilersInUse, compile_graph
from precast.autograd.graph_names import Compilation
from precast.autograd.trace_graphs import TracedGraph, trace_inference, trace_joint
from precast.ir.boundary import BoundaryFacts, Relation
from precast.ir.graphs import placeholders_of, results_of
from precast.ir.node_meta import mark_state, value_of
from precast.ops.cost import size_hint
from precast.tracing.fake_inputs import FakeInputs
from precast.tracing.trace import FlatFunction

Gradients = Callable[[Sequence[Any]], Sequence[Any]]
"""Gradients of all primals from the primals and tangents of a call, themselves differentiable."""


@dataclass(frozen=True)
class Job:
    """One compilation: with which compilers, under which name, and how gradients of gradients are come by.

    ``static_inputs`` are the inputs that live on between calls anyway (parameters, buffers).
    """

    compilers: CompilersInUse
    compilation: Compilation
    second_order: Callable[[FlatFunction, BoundaryFacts], Gradients]
    static_inputs: tuple[int, ...] = ()
    module_names: Mapping[int, str] = field(default_factory=dict)


def compile_variant(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> FlatCall:
    """Trace, split and compile ``function`` for the fake ``inputs``. Must run inside a ``tracing_session``."""
    if any(facts.tangents):
        call = _training_call(function, inputs, fakes, facts, job)
    else:
        call, facts = _inference_call(function, inputs, fakes, facts, job)
    if facts.updated:
        call = apply_updates(call, facts, inputs)
    if any(fact.relation is not Relation.FRESH for fact in facts.outputs):
        call = regenerate_aliases(call, facts, inputs)
    return call


def _inference_call(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> tuple[FlatCall, BoundaryFacts]:
    """The call of the forward alone, and what is left to do around it."""
    traced = trace_inference(
        function, inputs, fakes, facts, decompositions=job.compilers.decompositions, module_names=job.module_names
    )
    if job.compilers.keep_inference_input_mutations and not any((*traced.inputs, *traced.results)):
        facts = keep_mutations(traced.module, facts)
        traced = replace(traced, results=(None,) * len(facts.values))
    _mark_state(traced, facts, job)
    compiled = compile_graph(job.compilers.inference, traced.module, job.compilation.graph_name("inference"))
    graph_call = over_wrappers(compiled, traced.inputs, traced.results)

    def call(values: Sequence[Any]) -> list[Any]:
        return list(graph_call(list(values)))

    if torch.is_grad_enabled() and any(fact.requires_grad for fact in facts.inputs):
        # The program itself kept autograd from seeing what it does with them (no_grad blocks, detach).
        return torch.no_grad()(call), facts
    return call, facts


def _mark_state(traced: TracedGraph, facts: BoundaryFacts, job: Job) -> None:
    """Tell compilers which inputs stay the same from call to call."""
    parts = by_value(placeholders_of(traced.module.graph), traced.inputs)
    for number in job.static_inputs:
        for node in parts[number] if number not in facts.updated else ():
            mark_state(node)


def _training_call(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> FlatCall:
    traced = trace_joint(
        function, inputs, fakes, facts, decompositions=job.compilers.decompositions, module_names=job.module_names
    )
    count = len(facts.tangents)
    results, gradients = traced.results[:count], traced.results[count:]
    forward, backward = _partition(traced, plain_count(results), job)
    returned = results_of(forward.graph)
    saved = [node for node in returned[plain_count(results) :] if isinstance(node, fx.Node)]
    relevant = _primals_in_gradients(traced, plain_count(results))
    forward_call = compile_graph(job.compilers.forward, forward, job.compilation.graph_name("forward"))
    forward_call = in_grad_mode_if_read(forward_call, forward.graph)
    backward_call = compile_graph(job.compilers.backward, backward, job.compilation.graph_name("backward"))
    return differentiable_call(
        TrainingGraphs(
            forward=over_wrappers(forward_call, traced.inputs, results),
            backward=over_wrappers(backward_call, traced.tangents, gradients),
            result_count=count,
            saved_tensor_count=sum(isinstance(value_of(node), torch.Tensor) for node in saved),
            differentiable=facts.tangents,
            opaque=_opaque_results(facts),
            detached=_repeated_results(by_value(returned, results), facts),
            tangent_orders=_tangent_orders(facts),
            relevant=relevant,
            updated=facts.updated,
            second_order=job.second_order(function, facts),
            is_random=facts.is_random,
        )
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
        if opaque[number] or not all(isinstance(part, fx.Node) for part in parts):
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
