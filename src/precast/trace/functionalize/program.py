"""A captured program without mutation: writes to inputs become outputs, views become data flow.

Before: ``add_(b_count, 1); y = relu_(x); return (y,)``
After:  ``add = add(b_count, 1); relu = relu(x); return (add, relu, relu)`` with the signature
``BUFFER_MUTATION count; USER_INPUT_MUTATION x; USER_OUTPUT``.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from precast.errors import InputValueError, StateMutationError
from precast.graph.boundary import BoundaryFacts, InputFacts, OutputFacts
from precast.graph.nodes import source_line_of, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from precast.graph.verifier import verify
from precast.ops.facts import is_effectful, is_mutating, op_name
from precast.trace.boundary_outputs import returning_boundary
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
# What is switched for the nodes that follow, which tidying folds into regions.
_SWITCHES = (torch._C._set_grad_enabled, _enter_autocast, _exit_autocast)
_CHECKS = ("aten::_assert", "aten::sym_constrain", "aten::_functional_sym_constrain", "precast::tracepoint")
# Operators that write their running statistics though their schema does not say so, where this argument is true.
_STATISTICS = {"aten::batch_norm": 5, "aten::instance_norm": 5, "aten::native_batch_norm": 5}


def functionalize(
    program: Program,
    *,
    decompositions: Decompositions | None = None,
    pre_dispatch: bool = False,
    keep_aliases: bool = True,
) -> Program:
    """The same program as pure data flow; its ``boundary`` says what callers must be given back.

    Without ``keep_aliases`` outputs are values like any other: nothing is returned just to make aliases again.

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
        # A second trace would take such operators apart as may return an alias, to no end.
        return program.replace(boundary=_boundary_of_values(program))
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
    """Whether no node writes, or acts in another way that has to be kept in order, in subgraphs neither."""
    children = [child for child in module.children() if isinstance(child, fx.GraphModule)]
    return not any(map(_has_effect, module.graph.nodes)) and all(map(_is_pure_already, children))


def _has_effect(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target in _SWITCHES:
        return False
    if (switch := _STATISTICS.get(op_name(node.target))) is not None:
        return node.args[3] is not None and node.args[switch] is not False
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
                f"The program writes into {spec.target}, a tensor that it merely refers to.",
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
            why="a functional graph takes each input as a value of its own, and would miss that both change",
            fix="Pass a clone of one of them, or write into neither.",
        )


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
