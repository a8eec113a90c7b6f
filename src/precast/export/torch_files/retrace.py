"""Retraces a graph of PyTorch's exporter on our fake tensors, which functionalizes it.

Before: ``add_ = add_(b_count, 1); return (relu,)``, as in PyTorch's programs for training
After:  ``add = add(b_count, 1); return (add, relu)`` with ``BUFFER_MUTATION count``
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.sizes import fake_mode_of
from precast.export.tidy import named_outputs, tidied
from precast.export.tracepoints import with_marks, without_marks
from precast.graph.boundary import BoundaryFacts, InputFacts
from precast.graph.nodes import set_value, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, OutputKind, Signature
from precast.graph.sizes import SymbolicSizes
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.fake_inputs import fresh_copies
from precast.trace.functionalize import functionalize
from precast.trace.record import rename_placeholders, trace
from precast.trace.retrace import as_flat_function
from precast.trace.session import tracing_session

_UPDATES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@again_with_python_kernels
def retraced(
    module: fx.GraphModule,
    signature: Signature,
    state: Mapping[str, torch.Tensor],
    sizes: SymbolicSizes,
    origin: Origin,
    dialect: Dialect,
) -> ExportedProgram:
    """The retraced program; the placeholders of ``module`` carry fake values, other nodes need none."""
    program = Program(module, signature, dict(state), sizes)
    requiring_grad = _detached_inputs(program)
    is_before_autograd = dialect is Dialect.TRAINING
    program = _with_values(with_marks(program, origin.module_calls), pre_dispatch=is_before_autograd)
    program = functionalize(program, pre_dispatch=is_before_autograd, keep_aliases=False)
    assert program.boundary is not None, "just made functional"
    updates = [spec for spec in signature.outputs if spec.kind in _UPDATES]
    if updates:
        program = program.replace(boundary=_with_updates(program, program.boundary, updates))
    program, calls = without_marks(tidied(program, requiring_grad=requiring_grad), origin.module_calls)
    return ExportedProgram(program, replace(origin, module_calls=tuple(calls)), dialect=dialect)


def _with_values(program: Program, *, pre_dispatch: bool) -> Program:
    """The program, retraced once, so that its nodes carry our values."""
    mode = fake_mode_of(program)
    with tracing_session():
        with mode:
            inputs = fresh_copies([value_of(node) for node in program.placeholders])
        module = trace(as_flat_function(program.module), inputs, mode, pre_dispatch=pre_dispatch)
    program = program.replace(module=rename_placeholders(module, [node.name for node in program.placeholders]))
    return program.replace(signature=program.signature.replace(outputs=named_outputs(program)))


def _detached_inputs(program: Program) -> list[str]:
    """Mark the inputs as not requiring grad, as tracing expects; returns the names of user inputs that did."""
    names = []
    for node, spec in zip(program.placeholders, program.signature.inputs, strict=True):
        value = value_of(node)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            set_value(node, value.detach())
            names += [node.name] if spec.kind is InputKind.USER_INPUT else []
    return names


def _with_updates(program: Program, boundary: BoundaryFacts, updates: Sequence[object]) -> BoundaryFacts:
    """The boundary facts of a graph that already returned updated values: these results are not user outputs."""
    targets = [spec.target for spec in program.signature.outputs[: len(updates)]]
    names = [spec.arg.name if spec.kind is InputKind.USER_INPUT else spec.target for spec in program.signature.inputs]
    inputs = [
        InputFacts(mutates_data=True) if name in targets else fact
        for name, fact in zip(names, boundary.inputs, strict=True)
    ]
    return BoundaryFacts(tuple(inputs), boundary.outputs[len(updates) :])
