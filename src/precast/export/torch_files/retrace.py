"""A graph of PyTorch's exporter as a program of ours: run once more on our fake tensors, so that it is functional.

Before: ``add_ = add_(b_count, 1); return (relu,)``, as PyTorch's programs for training are
After:  ``add = add(b_count, 1); return (add, relu)`` with ``BUFFER_MUTATION count``
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.tidy import tidied
from precast.export.tracepoints import with_marks, without_marks
from precast.graph.boundary import BoundaryFacts, InputFacts
from precast.graph.nodes import set_value, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, OutputKind, Signature
from precast.graph.sizes import SymbolicSizes
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.functionalize import functionalize

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
    """The program; the placeholders of ``module`` carry fake values, other nodes need none."""
    program = Program(module, signature, dict(state), sizes)
    requiring_grad = _detached_inputs(program)
    program = with_marks(program, origin.module_calls)
    program = functionalize(program, pre_dispatch=dialect is Dialect.TRAINING, keep_aliases=False)
    assert program.boundary is not None, "just made functional"
    updates = [spec for spec in signature.outputs if spec.kind in _UPDATES]
    if updates:
        program = program.replace(boundary=_with_updates(program, program.boundary, updates))
    program, calls = without_marks(tidied(program, requiring_grad=requiring_grad), origin.module_calls)
    return ExportedProgram(program, replace(origin, module_calls=tuple(calls)), dialect=dialect)


def _detached_inputs(program: Program) -> list[str]:
    """Note the inputs without gradients, as tracing wants them; returns the names of those of users that had them."""
    names = []
    for node, spec in zip(program.placeholders, program.signature.inputs, strict=True):
        value = value_of(node)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            set_value(node, value.detach())
            names += [node.name] if spec.kind is InputKind.USER_INPUT else []
    return names


def _with_updates(program: Program, boundary: BoundaryFacts, updates: Sequence[object]) -> BoundaryFacts:
    """The facts of a graph that returned updated values already: these results are no outputs of callers."""
    targets = [spec.target for spec in program.signature.outputs[: len(updates)]]
    names = [spec.arg.name if spec.kind is InputKind.USER_INPUT else spec.target for spec in program.signature.inputs]
    inputs = [
        InputFacts(mutates_data=True) if name in targets else fact
        for name, fact in zip(names, boundary.inputs, strict=True)
    ]
    return BoundaryFacts(tuple(inputs), boundary.outputs[len(updates) :])
