"""Exports flat functional graphs: with lifted state and a signature, or bare. Refuses what they cannot express.

Before: ``module(x)``, with state and pytrees
After:  ``graph(parameters, buffers, inputs) -> (updated buffers, updated inputs, outputs[, gradients])``
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from precast.autograd.variants.graphs import tidy, trace_joint
from precast.errors import ExportError
from precast.graph.boundary import BoundaryFacts, Relation
from precast.graph.nodes import results_of
from precast.graph.signature import BackwardSignature, InputKind
from precast.trace.boundary_outputs import returning_boundary
from precast.trace.capture.dims import Dim
from precast.trace.capture.dynamic_shapes import positional_names
from precast.trace.capture.prepare import PreparedCall, prepare
from precast.trace.fake_inputs import fresh_copies
from precast.trace.functionalize import analyze, functionalized
from precast.trace.functionalize.shared_memory import inputs_written_through_others
from precast.trace.record import (
    Decompositions,
    FlatFunction,
    computing_sizes_when_used,
    rename_placeholders,
    trace,
)
from precast.trace.session import tracing_session


def check_options(*, trace_joint: bool, output_loss_index: int | None, pre_dispatch: bool) -> None:
    if trace_joint and pre_dispatch:
        raise ExportError(
            "A joint graph cannot be traced before dispatch.",
            why="pre_dispatch records ops above autograd, so there is no backward to record",
            fix="Leave out pre_dispatch=True, or trace with trace_joint=False.",
        )
    if trace_joint and output_loss_index is None:
        raise ExportError(
            "A joint graph needs to know which output is the loss.",
            why="gradients are those of one scalar output",
            fix="Pass output_loss_index, for example 0 for the first output.",
        )
    if not trace_joint and output_loss_index is not None:
        raise ExportError(
            "output_loss_index was given, but no joint graph is traced.",
            why="only a joint graph has gradients of a loss",
            fix="Pass trace_joint=True, or leave out output_loss_index.",
        )


def check_module_outputs(tree: pytree.TreeSpec) -> None:
    """Refuse outputs of a joint export other than a tensor, or a flat list or tuple of tensors."""
    nested = not tree.is_leaf() and (tree.type not in (list, tuple) or not all(c.is_leaf() for c in tree.children()))
    if nested:
        raise ExportError(
            "The module returns a nested structure.",
            why=f"a joint graph returns a tensor, or a list or tuple of tensors; this is {tree}",
            fix="Return the loss and the other tensors as one flat tuple.",
        )


def check_layouts(facts: BoundaryFacts, call: PreparedCall) -> None:
    """Refuse inputs whose sizes, strides or memory the program changes: no result of the graph could say so."""
    for number, fact in enumerate(facts.inputs):
        name = call.input_names[number]
        if fact.mutates_metadata:
            raise ExportError(
                f"The module changes the sizes, strides or memory of the input {name}.",
                why="a functional graph returns new values; it cannot say that an input got another shape",
                fix="Use an out-of-place op, such as x.t() for x.t_().",
            )


def check_joint_facts(facts: BoundaryFacts, call: PreparedCall) -> None:
    for number, fact in enumerate(facts.inputs):
        name = call.input_names[number]
        if fact.mutates_data and fact.requires_grad:
            raise ExportError(
                f"The module writes into the input {name}, which requires grad.",
                why="the gradient would have to be that of the value before",
                fix="Clone the input first, or write into it under no_grad outside of the graph.",
            )
    for number, output in enumerate(facts.outputs):
        if not output.is_tensor:
            raise ExportError(
                f"Output {number} of the module is not a tensor.",
                why="a joint graph returns tensors only",
                fix="Return only tensors.",
            )


def check_memory(facts: BoundaryFacts, call: PreparedCall) -> None:
    """Refuse inputs that share memory with one that is written: the graph would miss the update of the other."""
    tensors = [*(item.tensor for item in call.state), *call.call.leaves]
    for number, other in inputs_written_through_others(tensors, facts):
        raise ExportError(
            f"The module writes into {call.input_names[number]}, which shares memory with {call.input_names[other]}.",
            why="a functional graph treats each input as a separate value, and would miss that both change",
            fix="Pass a clone of one of them.",
        )


def check_loss(facts: BoundaryFacts, index: int) -> None:
    if not -len(facts.outputs) <= index < len(facts.outputs):
        raise ExportError(
            f"output_loss_index is {index}, but the module has {len(facts.outputs)} outputs.",
            why="the loss must be one of them",
            fix="Count from 0.",
        )
    loss = facts.values[len(facts.updated) + index % len(facts.outputs)]
    if loss.numel() != 1 or loss.dim() > 1:
        raise ExportError(
            f"The loss (output {index}) has shape {tuple(loss.shape)}.",
            why="gradients are taken of a scalar",
            fix="Reduce it with .sum() or .mean().",
        )
    if not facts.outputs[index].requires_grad:
        raise ExportError(
            f"The loss (output {index}) does not require grad.",
            why="nothing that it is computed from requires grad",
            fix="Check that it is not detached, and that parameters or inputs require grad.",
        )
    for number, output in enumerate(facts.outputs):
        if number != index % len(facts.outputs) and output.requires_grad:
            raise ExportError(
                f"Output {number} requires grad besides the loss.",
                why="the joint graph computes only gradients of the loss; those of this output would be lost",
                fix="Return it with .detach().",
            )


def missing_gradient(name: str) -> ExportError:
    return ExportError(
        f"The parameter {name} gets no gradient from the loss.",
        why="the loss is not computed from it",
        fix="Use it, remove it, or set requires_grad_(False) on it.",
    )


def check_simple_arguments(args: Sequence[Any]) -> None:
    if not isinstance(args, (list, tuple)):
        raise ExportError(
            f"The inputs are a {type(args).__name__}.",
            why="aot_export_joint_simple takes one flat list or tuple of tensors, not a bare leaf",
            fix="Write (x,) for a single tensor.",
        )
    if not all(isinstance(arg, torch.Tensor | torch.SymInt) for arg in args):
        raise ExportError(
            "The inputs are nested, or are not all tensors or symbolic sizes.",
            why="aot_export_joint_simple does not flatten pytrees: each input is one placeholder",
            fix="Pass a flat list of tensors, and rebuild the structure inside the function.",
        )


def check_simple_facts(facts: BoundaryFacts, tree: pytree.TreeSpec) -> None:
    if tree.is_leaf():
        raise ExportError(
            "The function returns a bare tensor.",
            why="aot_export_joint_simple returns a flat list or tuple of tensors",
            fix="Return (y,).",
        )
    if tree.type not in (list, tuple) or not all(child.is_leaf() for child in tree.children()):
        raise ExportError(
            "The function returns a nested structure.",
            why=f"aot_export_joint_simple returns a flat list or tuple of tensors; this is {tree}",
            fix="Return one flat tuple.",
        )
    if facts.updated:
        raise ExportError(
            f"The function writes into its input number {facts.updated[0]}.",
            why="there is no boundary around this graph that could apply the update",
            fix="Use out-of-place ops, or aot_export_module.",
        )
    for number, output in enumerate(facts.outputs):
        if output.relation is not Relation.FRESH:
            raise ExportError(
                f"Output {number} is {output.relation.value}.",
                why="there is no boundary around this graph that could regenerate the alias",
                fix="Return a clone().",
            )


@dataclass(frozen=True)
class GraphSignature:
    """The signature of a graph that ``aot_export_module`` returns.

    Placeholders are parameters, buffers, then user inputs. Results are updated buffers, updated user inputs, user
    outputs, and gradients if the graph is a joint one. Parameters and buffers have the names that they have in the
    module; everything else has the names of the graph.
    """

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    backward_signature: BackwardSignature | None = None
    parameters_to_mutate: dict[str, str] = field(default_factory=dict)


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
    """Return the module as a flat functional graph with its signature; with ``trace_joint``, including gradients.

    With ``trace_joint``, output number ``output_loss_index`` must be a scalar loss, and the graph also returns the
    gradient of every parameter and input that requires one. Arguments may be fake tensors; their symbolic sizes stay
    symbolic. ``dynamic_shapes`` are those of ``precast.export``; ``True`` makes all sizes of inputs dynamic.

    >>> graph, signature = aot_export_module(torch.nn.Linear(2, 1), (torch.ones(1, 2),), trace_joint=False)
    >>> signature.parameters, signature.user_inputs
    (['weight', 'bias'], ['arg2_1'])
    """
    check_options(trace_joint=trace_joint, output_loss_index=output_loss_index, pre_dispatch=pre_dispatch)
    with torch.set_grad_enabled(trace_joint), tracing_session():
        dims = _all_dynamic(mod, args, kwargs) if dynamic_shapes is True else dynamic_shapes or None
        call = prepare(mod, args, kwargs, dynamic_shapes=dims, takes_fakes=True)
        facts = analyze(call.flat, call.fake_inputs, call.fakes.mode)
        assert call.flat.out_tree is not None, "the module has run"
        check_memory(facts, call)
        check_layouts(facts, call)
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


def _all_dynamic(mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(zip(positional_names(mod, len(args)), args, strict=True)) | dict(kwargs or {})
    dims: dict[str, Any] = pytree.tree_map(
        lambda leaf: [Dim.AUTO] * leaf.dim() if isinstance(leaf, torch.Tensor) else None, given
    )
    return dims


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
        computing_sizes_when_used(functionalized(run, pre_dispatch=pre_dispatch)),
        inputs,
        call.fakes.mode,
        decompositions=decompositions,
        pre_dispatch=pre_dispatch,
        module_names=call.module_names,
    )
    return tidy(rename_placeholders(module, [f"arg{i}_1" for i in range(len(inputs))]))


def _embed_constants(module: fx.GraphModule, call: PreparedCall) -> None:
    """Make constant tensors of the module attributes of the graph: the signature has no place for them."""
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
    # Move get_attr nodes after the last placeholder.
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
    """Return the graph of a function over flat tensors: ``primals -> outputs``, or with ``trace_joint``
    ``primals, tangents -> outputs, gradients``.

    The function must not mutate its inputs or return aliases of them: this graph has no boundary around it. Arguments
    may be fake tensors; their symbolic sizes stay symbolic.
    """
    check_simple_arguments(args)
    with torch.set_grad_enabled(trace_joint), tracing_session():
        call = prepare(func, args, takes_fakes=True)
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
