"""Decompose an exported program into simpler ops, optionally with gradients.

Before: ``linear = linear(x, p_weight, p_bias); loss = mse_loss(linear, y); return (loss,)``
After:  ``t = permute(p_weight, [1, 0]); addmm = addmm(p_bias, x, t); …; return (mean, gradient of p_weight, …)``
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from precast._torch_compat import python_dispatcher
from precast.errors import ExportError
from precast.export.plain_state import over_plain_inputs, plain_inputs
from precast.export.preserved_ops import CustomDecompTable, composite_ops_in, preserved
from precast.export.signature import Dialect
from precast.export.sizes import fake_mode_of
from precast.export.tidy import tidied
from precast.export.tracepoints import with_marks, without_marks
from precast.graph.boundary import BoundaryFacts
from precast.graph.nodes import value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from precast.ops.decompositions import core_decompositions
from precast.trace.capture.least_sizes import with_least_sizes_of_graph
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.fake_inputs import fresh_copies
from precast.trace.functionalize import functionalized
from precast.trace.record import FlatFunction, argument_spec, rename_placeholders, trace
from precast.trace.retrace import as_flat_function
from precast.trace.session import tracing_session

if TYPE_CHECKING:
    from precast.export.program import ExportedProgram

Table = Mapping[torch._ops.OperatorBase, Callable[..., Any]]


@dataclass(frozen=True)
class _Gradients:
    """Which output is the loss, and for which inputs gradients are computed."""

    loss: int
    inputs: tuple[int, ...]


@again_with_python_kernels
def decompose(
    exported: "ExportedProgram",
    table: Table | None,
    preserve: Sequence[torch._ops.OpOverload] = (),
    *,
    loss_index: int | None = None,
) -> "ExportedProgram":
    """A decomposed program; without a table, in the Core ATen set. With a custom table, only its ops are decomposed."""
    if isinstance(table, CustomDecompTable):
        table.materialize()
    program = with_marks(exported.program, exported.module_call_graph)
    kept = _kept_whole(program, table, preserve, is_joint=loss_index is not None)
    rules = {op: rule for op, rule in (core_decompositions if table is None else table).items() if op not in preserve}
    gradients = None if loss_index is None else _plan_gradients(program, loss_index)
    plain, inputs = plain_inputs(program)
    if gradients is not None and len(inputs) != len(program.placeholders):
        raise ExportError(
            "Gradients of a program with tensor subclasses cannot be computed.",
            why="the gradient of a subclass is a subclass too, and a decomposed program has plain tensors only",
            fix="Decompose the program first, and compute the gradients of that.",
        )
    module, found = _retrace(program, inputs, rules, kept, gradients)
    program = plain
    module = rename_placeholders(module, [spec.arg.name for spec in program.signature.inputs])
    outputs = _outputs(program, module, gradients, found)
    assert program.boundary is not None, "exported programs are functional"
    boundary = BoundaryFacts(program.boundary.inputs, program.boundary.outputs)
    signature = program.signature.replace(outputs=outputs)
    returns_the_same = gradients is None
    sizes = with_least_sizes_of_graph(program.sizes, program.module, module) if returns_the_same else program.sizes
    result = program.replace(module=module, signature=signature, boundary=boundary, sizes=sizes)
    requiring_grad = [node.name for node in program.placeholders if getattr(value_of(node), "requires_grad", False)]
    tidy, calls = without_marks(tidied(result, requiring_grad=requiring_grad), exported.module_call_graph)
    return exported.replace(tidy, dialect=Dialect.ATEN, module_calls=calls)


def _kept_whole(
    program: Program, table: Table | None, preserve: Sequence[torch._ops.OpOverload], *, is_joint: bool
) -> set[torch._ops.OpOverload]:
    if is_joint and preserve:
        raise ExportError(
            "Ops cannot be kept whole in a program with gradients.",
            why="autograd differentiates the ops that such an op decomposes into",
            fix="Leave out _preserve_ops, or the loss.",
        )
    if is_joint or table is None:
        return set(preserve)
    return {*preserve, *composite_ops_in(program.module)}


def _retrace(
    program: Program,
    inputs: Sequence[Any],
    rules: Table,
    kept: set[torch._ops.OpOverload],
    gradients: _Gradients | None,
) -> tuple[fx.GraphModule, list[int]]:
    mode = fake_mode_of(program)
    found: list[int] = []
    run = over_plain_inputs(as_flat_function(program.module), [value_of(node) for node in program.placeholders])
    function = run if gradients is None else _with_gradients(run, gradients, found)
    grad_mode = torch.no_grad() if gradients is None else torch.enable_grad()
    with unset_fake_temporarily(), tracing_session(), grad_mode, preserved(kept):
        with mode:
            copies = fresh_copies(inputs)
        with python_dispatcher() if kept else nullcontext():
            module = trace(functionalized(function), copies, mode, decompositions=dict(rules))  # type: ignore[arg-type]
    for node in module.graph.nodes:
        # A functional graph has no writes, so a detached alias is equivalent to the value itself.
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    return module, found


def _plan_gradients(program: Program, loss_index: int) -> _Gradients:
    returned = [i for i, spec in enumerate(program.signature.outputs) if spec.kind is OutputKind.USER_OUTPUT]
    if not -len(returned) <= loss_index < len(returned):
        raise ExportError(
            f"The loss is output {loss_index}, but the program has {len(returned)} outputs.",
            why="the loss must be one of the flat outputs",
            fix="Count from 0.",
        )
    loss = returned[loss_index]
    result = program.results[loss]
    value = value_of(result) if isinstance(result, fx.Node) else result
    if not isinstance(value, torch.Tensor) or value.dim() != 0 or not value.is_floating_point():
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else value
        raise ExportError(
            f"The loss (output {loss_index}) is {shape}.",
            why="gradients are computed of one floating-point scalar",
            fix="Reduce it with .sum() or .mean(), or name another output as the loss.",
        )
    pairs = enumerate(zip(program.signature.inputs, program.placeholders, strict=True))
    wanted = [i for i, (spec, node) in pairs if _wants_gradient(program, spec, node)]
    return _Gradients(loss, tuple(wanted))


def _wants_gradient(program: Program, spec: InputSpec, node: fx.Node) -> bool:
    if spec.kind is InputKind.PARAMETER:
        return program.state[str(spec.target)].requires_grad
    value = value_of(node)
    return spec.kind is InputKind.USER_INPUT and isinstance(value, torch.Tensor) and value.requires_grad


def _with_gradients(function: FlatFunction, gradients: _Gradients, found: list[int]) -> FlatFunction:
    """``function``, returning its gradients too; the numbers of the inputs that have one are added to ``found``."""

    def run(*inputs: Any) -> list[Any]:
        own = [
            value.detach().requires_grad_(i in gradients.inputs) if isinstance(value, torch.Tensor) else value
            for i, value in enumerate(inputs)
        ]
        results = list(function(*own))
        loss = results[gradients.loss]
        if not loss.requires_grad:
            raise ExportError(
                "The loss does not depend on anything that requires grad.",
                why="no parameter and no input that requires grad leads to it, or it was detached",
                fix="Check which output is the loss, and that parameters or inputs require grad.",
            )
        with torch._C._DisableAutocast():
            made = torch.autograd.grad(loss, [own[i] for i in gradients.inputs], allow_unused=True)
        found[:] = [i for i, gradient in zip(gradients.inputs, made, strict=True) if gradient is not None]
        return [*results, *(gradient for gradient in made if gradient is not None)]

    return run


def _outputs(
    program: Program, module: fx.GraphModule, gradients: _Gradients | None, found: Sequence[int]
) -> tuple[OutputSpec, ...]:
    results = module.graph.output_node().args[0]
    assert isinstance(results, tuple), "traced graphs return one flat tuple"
    specs = list(program.signature.outputs)
    if gradients is not None:
        specs[gradients.loss] = OutputSpec(OutputKind.LOSS_OUTPUT, specs[gradients.loss].arg)
    for number in found:
        source = program.signature.inputs[number]
        is_parameter = source.kind is InputKind.PARAMETER
        kind = OutputKind.GRADIENT_TO_PARAMETER if is_parameter else OutputKind.GRADIENT_TO_USER_INPUT
        specs.append(OutputSpec(kind, source.arg, source.target if is_parameter else source.arg.name))
    return tuple(
        OutputSpec(spec.kind, argument_spec(result, i), spec.target)
        for i, (spec, result) in enumerate(zip(specs, results, strict=True))
    )
