"""Epilogue fusion for cuBLAS: GEMMs add their bias, and apply an activation, if nothing else remains to do.

Before::

    call mm: mm = matmul(x, w)
    for i0 < 8192, i1 < 768:  y[i0, i1] = mm[i0, i1] + b[i1]

After::

    call mm: y = matmul(x, w) then add b

A loop that does more has to read the product anyway; adding the bias there costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import constant
from precast.native.loops.program import Kernel, LibraryCall, LoopProgram, Step, reader_counts, with_steps
from precast.native.loops.scalars import Cast, Scalar
from precast.native.passes.epilogues import EpilogueWriter, Match, Part, path_from
from precast.native.passes.inline import strip_names

TYPES = ("f32", "bf16", "f16")
ACTIVATIONS = {"f32": ("relu",), "bf16": ("relu", "gelu_tanh"), "f16": ("relu", "gelu_tanh")}
"""Activations of cuBLAS; its gelu is too imprecise for single precision."""


def absorb_biases(program: LoopProgram) -> LoopProgram:
    """Move loops that only add a bias into the GEMM before them."""
    readers = reader_counts(program)
    names = {buffer.name for buffer in (*program.inputs, *program.outputs, *program.temporaries)}
    calls: dict[Buffer, LibraryCall] = {}
    steps: list[Step] = []
    for step in program.steps:
        grown: list[Step] | None = None
        if isinstance(step, Kernel) and len(step.written) == 1:
            for buffer in step.read:
                grown = grown or (_grown(calls[buffer], step, names) if buffer in calls else None)
                if grown is not None:
                    steps.remove(calls.pop(buffer))
                    break
        if isinstance(step, LibraryCall) and step.routine == "matmul" and not step.epilogue:
            (result,) = step.outputs
            if len(result.shape) == 2 and result.dtype in TYPES and readers[result.buffer] == 1:
                calls[result.buffer] = step
        steps += [step] if grown is None else grown
    return with_steps(program, steps)


def _grown(call: LibraryCall, kernel: Kernel, names: set[str]) -> list[Step] | None:
    """The GEMM with the loop in it, after the computation of the bias; None if the loop does more."""
    match = Match.of(call, kernel)
    if match is None:
        return None
    value, parts = match.definition.value, path_from(match.load, match.definition.value)
    target = match.view_of(match.definition.buffer, match.definition.offset)
    if target is None or not _is_plain(target) or target.dtype != call.outputs[0].dtype:
        return None
    bias = _bias_of(match, parts)
    if bias is None or not _reaches(parts[-1].reached, value):
        return None
    writer = EpilogueWriter(match, names)
    operand = writer.operand("bias", bias)
    # Libraries add numbers of the product's type.
    writer.finish("add", operand if operand.dtype == bias.dtype else writer.computed("bias", bias))
    for part in parts[1:]:
        writer.add(part)
    grown = replace(
        call,
        inputs=(*call.inputs, *writer.operands),
        outputs=(target,),
        origins=tuple(dict.fromkeys((*call.origins, *kernel.origins))),
        epilogue=tuple(writer.finishes),
    )
    return [*writer.kernels, grown]


def _bias_of(match: Match, parts: list[Part]) -> Scalar | None:
    """The bias of each row, in the type of the GEMM; None if the loop does anything else."""
    match parts:
        case [Part("add", operand, _)] | [Part("add", operand, _), Part(_, None, _)] if operand is not None:
            pass
        case _:
            return None
    if len(parts) > 1 and parts[1].operation not in ACTIVATIONS[match.load.dtype]:
        return None
    if not match.is_of_channel(operand):
        return None
    bias = strip_names(operand)
    if isinstance(bias, Cast) and bias.value.dtype == match.load.dtype:
        bias = bias.value
    return bias if bias.dtype == match.load.dtype else None


def _reaches(reached: Scalar, value: Scalar) -> bool:
    """Whether a value is only rounded on the way to the result."""
    while value is not reached and isinstance(stripped := strip_names(value), Cast):
        value = stripped.value
    return strip_names(value) is strip_names(reached)


def _is_plain(view: View) -> bool:
    rows, columns = view.strides
    return columns == constant(1) and rows == view.shape[1] and view.offset == constant(0)
