"""Compiles one variant of a flat function: for inputs of these kinds, under this grad mode.

Before: ``function(flat inputs) -> flat outputs``, Python that may mutate, alias and need gradients
After:  a ``FlatCall`` that has the same effects and gradients over compiled functional graphs
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.alias_regeneration import regenerate_aliases
from precast.autograd.boundary.autograd_function import TrainingGraphs, differentiable_call
from precast.autograd.boundary.mutation_epilogue import apply_updates
from precast.autograd.compilers_in_use import CompilersInUse, compile_graph
from precast.autograd.graph_names import Compilation
from precast.autograd.trace_graphs import trace_inference, trace_joint
from precast.ir.boundary import BoundaryFacts, Relation
from precast.ir.graphs import placeholders_of, results_of
from precast.ir.node_meta import value_of
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
    call = (
        _training_call(function, inputs, fakes, facts, job)
        if torch.is_grad_enabled() and any(facts.tangents)
        else _inference_call(function, inputs, fakes, facts, job)
    )
    if facts.updated:
        call = apply_updates(call, facts)
    if any(fact.relation is not Relation.FRESH for fact in facts.outputs):
        call = regenerate_aliases(call, facts)
    return call


def _inference_call(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> FlatCall:
    module = trace_inference(
        function, inputs, fakes, facts, decompositions=job.compilers.decompositions, module_names=job.module_names
    )
    graph_call = compile_graph(job.compilers.inference, module, job.compilation.graph_name("inference"))

    def call(values: Sequence[Any]) -> list[Any]:
        return list(graph_call(list(values)))

    return call


def _training_call(
    function: FlatFunction, inputs: Sequence[Any], fakes: FakeInputs, facts: BoundaryFacts, job: Job
) -> FlatCall:
    module = trace_joint(
        function, inputs, fakes, facts, decompositions=job.compilers.decompositions, module_names=job.module_names
    )
    count = len(facts.tangents)
    values = [value_of(node) for node in placeholders_of(module.graph)]
    primals, tangents = values[: len(facts.inputs)], values[len(facts.inputs) :]
    forward, backward = job.compilers.partition(
        module, (primals, tangents), num_fwd_outputs=count, static_lifetime_input_indices=list(job.static_inputs)
    )
    returned = results_of(forward.graph)
    results, saved = returned[:count], [node for node in returned[count:] if isinstance(node, fx.Node)]
    relevant = _primals_in_gradients(module, len(facts.inputs), count)
    return differentiable_call(
        TrainingGraphs(
            forward=compile_graph(job.compilers.forward, forward, job.compilation.graph_name("forward")),
            backward=compile_graph(job.compilers.backward, backward, job.compilation.graph_name("backward")),
            result_count=count,
            saved_tensor_count=sum(isinstance(value_of(node), torch.Tensor) for node in saved),
            differentiable=facts.tangents,
            opaque=_opaque_results(facts),
            detached=_repeated_results(results, facts),
            tangent_orders=tuple(_memory_order(tangent) for tangent in tangents),
            relevant=relevant,
            overwritten=tuple(i for i in relevant if i in facts.updated),
            second_order=job.second_order(function, facts),
            is_random=facts.is_random,
        )
    )


def _opaque_results(facts: BoundaryFacts) -> tuple[bool, ...]:
    aliases = [fact.relation is not Relation.FRESH for fact in facts.outputs]
    return (*(False,) * len(facts.updated), *aliases, *(False,) * len(facts.base_requires_grad))


def _repeated_results(results: Sequence[Any], facts: BoundaryFacts) -> tuple[bool, ...]:
    """Updated inputs whose new value the graph takes from an input as it is, or returns a second time."""
    updated = len(facts.updated)
    visible = [result for result, opaque in zip(results, _opaque_results(facts), strict=True) if not opaque]
    return tuple(
        i < updated and isinstance(result, fx.Node) and (result.op == "placeholder" or visible.count(result) > 1)
        for i, result in enumerate(results)
    )


def _memory_order(tangent: Any) -> tuple[int, ...] | None:
    """The dimensions from outermost to innermost in memory; ``None`` where that is their own order."""
    if tangent.is_contiguous():
        return None
    return tuple(sorted(range(tangent.dim()), key=lambda dim: -size_hint(tangent.stride(dim))))


def _primals_in_gradients(module: fx.GraphModule, primal_count: int, result_count: int) -> tuple[int, ...]:
    """The numbers of the tensor primals that any gradient is computed from."""
    waiting = [node for node in results_of(module.graph)[result_count:] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(node.all_input_nodes)
    primals = placeholders_of(module.graph)[:primal_count]
    return tuple(i for i, node in enumerate(primals) if node in seen and isinstance(value_of(node), torch.Tensor))
