"""Functionalizes a captured program: writes to inputs become outputs, views become data flow.

Before: ``add_(b_count, 1); y = relu_(x); return (y,)``
After:  ``add = add(b_count, 1); relu = relu(x); return (add, relu, relu)`` with the signature
``BUFFER_MUTATION count; USER_INPUT_MUTATION x; USER_OUTPUT``.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import getitem

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.utils import _pytree as pytree

from precast.errors import InputValueError, StateMutationError
from precast.graph.boundary import BoundaryFacts, InputFacts, OutputFacts
from precast.graph.nodes import placeholders_of, source_line_of, subgraph_of, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from precast.graph.verifier import verify
from precast.ops.facts import is_effectful, is_mutating, is_view, op_name
from precast.trace.boundary_outputs import returning_boundary
from precast.trace.control_flow import FORMS, writes_outside
from precast.trace.fake_inputs import FakeInputs, fresh_copies, size_guards
from precast.trace.functionalize.analysis import analyze
from precast.trace.functionalize.run import functionalized
from precast.trace.functionalize.shared_memory import inputs_written_through_others
from precast.trace.record import Decompositions, argument_spec, rename_placeholders, trace
from precast.trace.retrace import as_flat_function, remove_dead_nodes
from precast.trace.session import tracing_session

_MUTATION_KINDS = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}
# Mode switches for the nodes that follow; export.tidy folds them into regions.
_SWITCHES = (torch._C._set_grad_enabled, _enter_autocast, _exit_autocast)
_CHECKS = ("aten::_assert", "aten::sym_constrain", "aten::_functional_sym_constrain", "precast::tracepoint")
# Operators that write their running statistics, though their schema does not say so, if this argument is true.
_STATISTICS = {"aten::batch_norm": 5, "aten::instance_norm": 5, "aten::native_batch_norm": 5}


def functionalize(
    program: Program,
    *,
    decompositions: Decompositions | None = None,
    pre_dispatch: bool = False,
    keep_aliases: bool = True,
) -> Program:
    """The same program as pure data flow; its ``boundary`` records the effects that callers must reproduce.

    Without ``keep_aliases``, outputs are plain values: no bases are returned to regenerate aliases from.

    >>> import torch
    >>> from precast.trace.capture import capture
    >>> print(functionalize(capture(lambda x: x.add_(1), (torch.zeros(2),))))
    def forward(x: f32[2]):
        add: f32[2] = aten.add.Tensor(x, 1)
        return (add, add)
    <BLANKLINE>
    inputs:  x = USER_INPUT
    outputs: add = USER_INPUT_MUTATION x; add = USER_OUTPUT
    """
    if program.functional:
        return program
    if not keep_aliases and not decompositions and _is_pure_already(program.module):
        # A retrace would needlessly decompose operators that may return an alias.
        return program.replace(boundary=_boundary_of_values(program))
    _refuse_writes_in_branches(program.module)
    run = as_flat_function(program.module)
    inputs = [value_of(node) for node in program.placeholders]
    mode = _fake_mode_of(program)
    with tracing_session():
        boundary = analyze(run, inputs, mode)
        boundary = boundary if keep_aliases else _without_aliases(boundary)
        _refuse_updated_constants(program, boundary)
        _refuse_shared_memory(program, inputs, boundary)
        with mode:
            copies = fresh_copies(inputs)
        module = trace(
            functionalized(returning_boundary(run, boundary), pre_dispatch=pre_dispatch),
            copies,
            mode,
            decompositions=decompositions,
            pre_dispatch=pre_dispatch,
        )
    module = rename_placeholders(module, [node.name for node in program.placeholders])
    remove_dead_nodes(module.graph)
    module.recompile()
    outputs = _output_specs(program, boundary, module)
    result = program.replace(
        module=module,
        signature=program.signature.replace(outputs=outputs),
        boundary=boundary,
        sizes=program.sizes.with_guards(size_guards(mode.shape_env)) if mode.shape_env is not None else program.sizes,
    )
    verify(result, after="functionalize")
    return result


def _is_pure_already(module: fx.GraphModule) -> bool:
    """Whether no node mutates or has other ordered side effects, including those in subgraphs."""
    children = [child for child in module.children() if isinstance(child, fx.GraphModule)]
    return not any(map(_has_effect, module.graph.nodes)) and all(map(_is_pure_already, children))


def _has_effect(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target in _SWITCHES:
        return False
    if op_name(node.target) in _STATISTICS:
        return bool(_statistics_written_by(node))
    is_check = isinstance(node.target, OpOverload) and node.target.name().startswith(_CHECKS)
    return is_mutating(node) or (is_effectful(node) and not is_check)


def _boundary_of_values(program: Program) -> BoundaryFacts:
    tensors = [value_of(node) for node in program.placeholders]
    inputs = [
        InputFacts(requires_grad=value.requires_grad, is_leaf=value.is_leaf)
        if isinstance(value, torch.Tensor)
        else InputFacts()
        for value in tensors
    ]
    results = [value_of(result) if isinstance(result, fx.Node) else result for result in program.results]
    outputs = [
        OutputFacts(requires_grad=getattr(value, "requires_grad", False), is_tensor=isinstance(value, torch.Tensor))
        for value in results
    ]
    return BoundaryFacts(tuple(inputs), tuple(outputs), values=tuple(results))


def _fake_mode_of(program: Program) -> FakeTensorMode:
    """The mode that made the program's values, so that sizes keep their symbols."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None) or FakeInputs().mode


def _without_aliases(boundary: BoundaryFacts) -> BoundaryFacts:
    values = boundary.values[: len(boundary.updated) + len(boundary.outputs)]
    outputs = [OutputFacts(requires_grad=fact.requires_grad, is_tensor=fact.is_tensor) for fact in boundary.outputs]
    return replace(boundary, outputs=tuple(outputs), base_requires_grad=(), values=values)


def _refuse_updated_constants(program: Program, boundary: BoundaryFacts) -> None:
    for number in boundary.updated:
        spec, node = program.signature.inputs[number], program.placeholders[number]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            writers = [user for user in node.users if is_mutating(user)] or list(node.users)
            raise StateMutationError(
                f"The program writes into {spec.target}, a tensor that is a constant of it.",
                at=str(source_line_of(writers[0])) if writers else None,
                why="constants of a program are the same in every call",
                fix="Make it a buffer of the module, or pass it as an argument.",
            )


def _refuse_shared_memory(program: Program, inputs: Sequence[object], boundary: BoundaryFacts) -> None:
    for number, other in inputs_written_through_others(inputs, boundary):
        written, read = (program.signature.inputs[i] for i in (number, other))
        writers = [user for user in program.placeholders[number].users if is_mutating(user)]
        raise InputValueError(
            f"The program writes into {_mutation_target(written)}, which shares memory with {_mutation_target(read)}.",
            at=str(source_line_of(writers[0])) if writers else None,
            why="a functional graph treats each input as a separate value, and would miss that both change",
            fix="Pass a clone of one of them, or write into neither.",
        )


def _refuse_writes_in_branches(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if not (isinstance(node.target, HigherOrderOperator) and node.target._name in FORMS):
            continue
        for branch in filter(None, map(subgraph_of, node.all_input_nodes)):
            if (writer := _writer_into_inputs(branch.graph)) is not None:
                raise writes_outside(node.target, str(source_line_of(writer) or source_line_of(node)))
            _refuse_writes_in_branches(branch)


def _writer_into_inputs(graph: fx.Graph) -> fx.Node | None:
    """A node that writes into an input of the graph, itself or through a view."""
    shared = set(placeholders_of(graph))
    node: fx.Node
    for node in graph.nodes:
        if node.op == "call_function" and not shared.isdisjoint(node.all_input_nodes):
            if not shared.isdisjoint(_written_by(node)):
                return node
            if is_view(node) or node.target is getitem:
                shared.add(node)
    return None


def _statistics_written_by(node: fx.Node) -> list[fx.Node]:
    is_updating = node.args[_STATISTICS[op_name(node.target)]] is not False
    return [each for each in node.args[3:5] if isinstance(each, fx.Node)] if is_updating else []


def _written_by(node: fx.Node) -> list[fx.Node]:
    if op_name(node.target) in _STATISTICS:
        return _statistics_written_by(node)
    if not (isinstance(node.target, OpOverload) and is_mutating(node)):
        return []
    names = [each.name for each in node.target._schema.arguments if each.alias_info and each.alias_info.is_write]
    given = dict(zip((each.name for each in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    return [each for name in names for each in pytree.tree_leaves(given.get(name)) if isinstance(each, fx.Node)]


def _output_specs(program: Program, boundary: BoundaryFacts, module: fx.GraphModule) -> tuple[OutputSpec, ...]:
    results = module.graph.output_node().args[0]
    assert isinstance(results, tuple), "traced graphs return one flat tuple"
    updated = [program.signature.inputs[number] for number in boundary.updated]
    mutations = [
        OutputSpec(_MUTATION_KINDS[spec.kind], argument_spec(result, i), _mutation_target(spec))
        for i, (spec, result) in enumerate(zip(updated, results, strict=False))
    ]
    users = [
        OutputSpec(spec.kind, argument_spec(result, len(updated) + i), spec.target)
        for i, (spec, result) in enumerate(zip(program.signature.outputs, results[len(updated) :], strict=False))
    ]
    bases = [
        OutputSpec(OutputKind.INTERMEDIATE_BASE, argument_spec(result, len(updated) + len(users) + i))
        for i, result in enumerate(results[len(updated) + len(users) :])
    ]
    return (*mutations, *users, *bases)


def _mutation_target(spec: InputSpec) -> str:
    return spec.target if spec.target is not None else spec.arg.name
