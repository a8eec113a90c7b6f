"""Whether a model is valid and computes what the program computes; if not, the first node at which it does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch

from precast.errors import OnnxError, OnnxMismatchError
from precast.ir.program import Program
from precast.onnx.closeness import difference
from precast.onnx.first_difference import first_difference
from precast.onnx.other_sizes import describe_binding, input_shapes, other_bindings, resized
from precast.onnx.session import Session, has_onnxruntime, newest_readable_opset
from precast.onnx.translate import RuleUse
from precast.onnx.weights import missing_as_inputs, missing_in

_WITHOUT_KERNELS = {
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}
_RANDOM_OPERATORS = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip

Reference = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""The original model as a function from the ONNX model's inputs to its outputs."""


@dataclass(frozen=True)
class Verification:
    """What was compared and found equal, and what could not be checked and why."""

    checked: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        skipped = [f"not checked: {reason}" for reason in self.skipped]
        return "\n".join([f"checked: {', '.join(self.checked) or 'nothing'}", *skipped])


def verify_model(
    model: ir.Model, program: Program, uses: Sequence[RuleUse], inputs: Sequence[torch.Tensor], reference: Reference
) -> Verification:
    """Check the structure, then the numbers on the example and on other sizes; raise where they differ."""
    check_structure(model)
    reason = _why_not_run(model)
    if reason:
        return Verification(("structure",), (f"the numbers: {reason}",))
    session = Session(model)
    checked, skipped = ["structure"], _unread_opset(model)
    for name, call in _calls(program, inputs, skipped, reference):
        expected = call.expected
        actual = session.run(call.inputs)[: len(expected)]
        problems = [difference(a, e) for a, e in zip(actual, expected, strict=True)]
        if any(problems):
            raise _mismatch(model, program, uses, call.inputs, name, problems)
        checked.append(name)
    return Verification(tuple(checked), tuple(skipped))


def check_structure(model: ir.Model) -> None:
    """Let onnx's own checker look at the model."""
    try:
        with missing_as_inputs(model):
            passes.CheckerPass()(model)
    except (onnx.checker.ValidationError, ir.passes.PassError) as error:
        raise OnnxError(
            "The exported model is not valid ONNX.",
            why=str(error.__cause__ or error),
            fix="Check the rules in custom_translation_table; without any, this is a defect of Precast.",
        ) from error


def _why_not_run(model: ir.Model) -> str | None:
    if missing_in(model):
        return "the model has no weights yet"
    if not has_onnxruntime():
        return "onnxruntime is not installed"
    if any(value.dtype in _WITHOUT_KERNELS for node in model.graph.all_nodes() for value in node.outputs):
        return "onnxruntime has no kernels for its dtypes on the CPU"
    if any(_is_random(node) for node in model.graph.all_nodes()):
        return "the model draws random numbers"
    return None


def _unread_opset(model: ir.Model) -> list[str]:
    opset, newest = model.opset_imports[""], newest_readable_opset()
    return [f"opset {opset}: onnxruntime reads up to {newest}, and ran the model as that"] if opset > newest else []


def _is_random(node: ir.Node) -> bool:
    if node.op_type != "Dropout":
        return node.op_type in _RANDOM_OPERATORS
    training = node.inputs[2] if len(node.inputs) > 2 else None
    constant = ir.convenience.get_const_tensor(training) if training is not None else None
    return training is not None and (constant is None or bool(constant.numpy()))


@dataclass(frozen=True)
class _Call:
    inputs: Sequence[torch.Tensor]
    expected: Sequence[torch.Tensor]


def _calls(
    program: Program, inputs: Sequence[torch.Tensor], skipped: list[str], reference: Reference
) -> Iterator[tuple[str, _Call]]:
    """The example, then the example at one other combination of sizes that the original model takes."""
    yield "example inputs", _Call(inputs, reference(inputs))
    shapes = input_shapes(program)
    candidates = list(islice(other_bindings(program, inputs), 6))
    for binding in candidates:
        others = [resized(tensor, shape, binding) for tensor, shape in zip(inputs, shapes, strict=True)]
        try:
            expected = reference(others)
        except (RuntimeError, ValueError, IndexError):
            # The original model itself refuses these sizes.
            continue
        yield describe_binding(program, binding), _Call(others, expected)
        return
    if any(not isinstance(size, int) for shape in shapes for size in shape):
        skipped.append(
            "other sizes: the original model takes none of those tried" if candidates else "other sizes: none fit"
        )


def _mismatch(
    model: ir.Model,
    program: Program,
    uses: Sequence[RuleUse],
    inputs: Sequence[torch.Tensor],
    call: str,
    problems: Sequence[str | None],
) -> OnnxMismatchError:
    outputs = [value.name for value in model.graph.outputs]
    told = "; ".join(f"{name} {problem}" for name, problem in zip(outputs, problems, strict=False) if problem)
    found = first_difference(model, program, inputs)
    use = next((use for use in uses if found and use.node == found.node), None)
    where = (
        f"the first node that differs is {found.node}: it {found.problem}"
        if found
        else "every node that is still there agrees"
    )
    rule = f"; it is {use.operator}, translated by {use.source}'s {use.rule}" if use else ""
    return OnnxMismatchError(
        f"The ONNX model computes other numbers than the original on {call}: {told}.",
        why=where + rule,
        fix="Give a right rule in custom_translation_table, or pass verify=False to get the model as it is.",
        at=use.at if use else None,
    )
