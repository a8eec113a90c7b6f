"""Flat functional graphs for people who run them themselves: with lifted state and a signature, or quite bare.

Before: ``module(x)``, with state and trees
After:  ``graph(parameters, buffers, inputs) -> (updated buffers, updated inputs, outputs[, gradients])``
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from precast.autograd.export_checks import (
    check_joint_facts,
    check_loss,
    check_module_outputs,
    check_options,
    check_simple_arguments,
    check_simple_facts,
    missing_gradient,
)
from precast.autograd.graph_signature import BackwardSignature, GraphSignature
from precast.autograd.trace_graphs import tidy, trace_joint
from precast.capture.prepare import PreparedCall, prepare
from precast.functionalize import analyze, functionalized
from precast.ir.boundary import BoundaryFacts
from precast.ir.graphs import results_of
from precast.ir.signature import InputKind
from precast.tracing.boundary_outputs import returning_boundary
from precast.tracing.fake_inputs import fresh_copies
from precast.tracing.flat_function import FlatFunction
from precast.tracing.session import tracing_session
from precast.tracing.trace import Decompositions, rename_placeholders, trace


def aot_export_module(
    mod: torch.nn.Module,
    args: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """The module as a flat functional graph and its signature; with ``trace_joint``, its gradients too.

    With ``trace_joint`` output number ``output_loss_index`` is a scalar loss, and the graph also returns the gradient
    of every parameter and input that requires one.

    >>> graph, signature = aot_export_module(torch.nn.Linear(2, 1), (torch.ones(1, 2),), trace_joint=False)
    >>> signature.parameters, signature.user_inputs
    (['weight', 'bias'], ['arg2_1'])
    """
    check_options(trace_joint=trace_joint, output_loss_index=output_loss_index, pre_dispatch=pre_dispatch)
    with torch.set_grad_enabled(trace_joint), tracing_session():
        call = prepare(mod, args, kwargs, dynamic_shapes=dynamic_shapes)
        facts = analyze(call.flat, call.fake_inputs, call.fakes.mode)
        assert call.flat.out_tree is not None, "the module has run"
        if trace_joint:
            assert output_loss_index is not None, "checked above"
            check_module_outputs(call.flat.out_tree)
            check_joint_facts(facts, call)
            check_loss(facts, output_loss_index)
            run = _with_gradients(call.flat, facts, output_loss_index)
        else:
            run = returning_boundary(call.flat, facts)
        module = _trace(run, call, decompositions, pre_dispatch=pre_dispatch)
    _embed_constants(module, call)
    return module, _signature(module, call, facts, output_loss_index if trace_joint else None)


def _with_gradients(function: FlatFunction, facts: BoundaryFacts, loss_index: int) -> FlatFunction:
    """``function``, returning also the gradients of one of its outputs."""

    def run(*inputs: Any) -> list[Any]:
        own = [
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in inputs
        ]
        with torch.enable_grad():
            outputs = function(*own)
            results = returning_boundary(lambda *_: outputs, facts)(*own)
        wanted = [value for value, fact in zip(own, facts.inputs, strict=True) if fact.requires_grad]
        return [*results, *torch.autograd.grad(outputs[loss_index], wanted, allow_unused=True)]

    return run


def _trace(
    run: FlatFunction, call: PreparedCall, decompositions: Decompositions | None, *, pre_dispatch: bool
) -> fx.GraphModule:
    with call.fakes.mode:
        inputs = fresh_copies(call.fake_inputs)
    module = trace(
        functionalized(run, pre_dispatch=pre_dispatch),
        inputs,
        call.fakes.mode,
        decompositions=decompositions,
        pre_dispatch=pre_dispatch,
        module_names=call.module_names,
    )
    return tidy(rename_placeholders(module, [f"arg{i}_1" for i in range(len(inputs))]))


def _embed_constants(module: fx.GraphModule, call: PreparedCall) -> None:
    """Tensors that the module merely refers to become attributes of the graph: the signature has no place for them."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for item, node in zip(call.state, placeholders, strict=False):
        if item.kind is InputKind.CONSTANT_TENSOR:
            name = f"_constant_{node.name}"
            module.register_buffer(name, item.tensor, persistent=False)
            with module.graph.inserting_before(node):
                attribute = module.graph.get_attr(name)
            attribute.meta = dict(node.meta)
            node.replace_all_uses_with(attribute)
            module.graph.erase_node(node)
    # Attributes are read after the last placeholder.
    first_other = next(node for node in module.graph.nodes if node.op not in ("placeholder", "get_attr"))
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:
        first_other.prepend(node)
    module.recompile()


def _signature(
    module: fx.GraphModule, call: PreparedCall, facts: BoundaryFacts, loss_index: int | None
) -> GraphSignature:
    names = [f"arg{i}_1" for i in range(len(call.fake_inputs))]
    targets = dict(zip(names, call.state, strict=False))
    kinds = {kind: {n: s.target for n, s in targets.items() if s.kind is kind} for kind in InputKind}
    results = [result.name if isinstance(result, fx.Node) else repr(result) for result in results_of(module.graph)]
    updated = {result: names[number] for result, number in zip(results, facts.updated, strict=False)}
    outputs = results[len(facts.updated) : len(facts.updated) + len(facts.outputs)]
    parameters, buffers = kinds[InputKind.PARAMETER], kinds[InputKind.BUFFER]
    backward = None
    if loss_index is not None:
        gradients = results[len(facts.tangents) :]
        backward = _backward_signature(gradients, names, facts, parameters, outputs[loss_index], module)
    assert call.flat.out_tree is not None, "the module has run"
    return GraphSignature(
        parameters=list(parameters.values()),
        buffers=list(buffers.values()),
        user_inputs=names[len(call.state) :],
        user_outputs=outputs,
        inputs_to_parameters=parameters,
        inputs_to_buffers=buffers,
        buffers_to_mutate={result: buffers[name] for result, name in updated.items() if name in buffers},
        user_inputs_to_mutate={result: name for result, name in updated.items() if name not in targets},
        in_spec=call.call.tree,
        out_spec=call.flat.out_tree,
        backward_signature=backward,
        parameters_to_mutate={result: parameters[name] for result, name in updated.items() if name in parameters},
    )


def _backward_signature(
    gradients: Sequence[str],
    names: Sequence[str],
    facts: BoundaryFacts,
    parameters: Mapping[str, str],
    loss: str,
    module: fx.GraphModule,
) -> BackwardSignature:
    wanted = [name for name, fact in zip(names, facts.inputs, strict=True) if fact.requires_grad]
    returned = results_of(module.graph)[len(facts.tangents) :]
    for name, gradient in zip(wanted, returned, strict=True):
        if gradient is None and name in parameters:
            raise missing_gradient(parameters[name])
    by_input = [(gradient, name) for gradient, name in zip(gradients, wanted, strict=True) if gradient != "None"]
    return BackwardSignature(
        gradients_to_parameters={g: parameters[name] for g, name in by_input if name in parameters},
        gradients_to_user_inputs={g: name for g, name in by_input if name not in parameters},
        loss_output=loss,
    )


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: Decompositions | None = None,
) -> fx.GraphModule:
    """A function of flat tensors that returns flat tensors, as a graph: ``primals -> outputs``, or with ``trace_joint``
    ``primals, tangents -> outputs, gradients``.

    It must not mutate its inputs nor return aliases of them: there is no boundary around this graph.
    """
    check_simple_arguments(args)
    with torch.set_grad_enabled(trace_joint), tracing_session():
        call = prepare(func, args)
        facts = analyze(call.flat, call.fake_inputs, call.fakes.mode)
        assert call.flat.out_tree is not None, "the function has run"
        check_simple_facts(facts, call.flat.out_tree)
        if not trace_joint:
            return _trace(returning_boundary(call.flat, facts), call, decompositions, pre_dispatch=False)
        return _joint(call, facts, decompositions)


def _joint(call: PreparedCall, facts: BoundaryFacts, decompositions: Decompositions | None) -> fx.GraphModule:
    return trace_joint(
        call.flat,
        call.fake_inputs,
        call.fakes,
        facts,
        decompositions=decompositions,
        module_names=call.module_names,
    ).module
