"""Convolutions: calls of oneDNN; the bias is a loop that fuses with what follows.

A transposed convolution is the gradient of a convolution with respect to its input, and the other way round, so three
routines serve both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index
from precast.ir.loops.scalars import Load, cast
from precast.lower.builder import Builder, Result, math_dtype
from precast.lower.registry import DECLINED, Lowered, lowering

aten = torch.ops.aten

Sizes = Sequence[Index | int]


def _numbers(source: Buffer, groups: int, *geometry: Sizes) -> list[Index | int]:
    """What the routines are told: groups, strides, padding, dilation; one number may stand for all dimensions."""
    spatial = len(source.shape) - 2
    whole = [sizes if len(sizes) == spatial else [sizes[0]] * spatial for sizes in geometry]
    return [groups, *(number for sizes in whole for number in sizes)]


@lowering(aten.convolution.default)
def convolution(
    builder: Builder, source: Buffer, weight: Buffer, bias: Buffer | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Lowered:  # fmt: skip
    if not 3 <= len(source.shape) <= 5:
        return DECLINED
    numbers = _numbers(source, groups, stride, padding, dilation)
    (result,) = builder.call("convolution_backward_data" if transposed else "convolution", [source, weight], numbers)
    if bias is None:
        return result
    dtype = math_dtype(source.dtype)
    return builder.define(lambda at: cast(Load(result, at), dtype) + cast(Load(bias, (at[1],)), dtype))


@lowering(aten.convolution_backward.default)
def convolution_backward(
    builder: Builder, gradient: Buffer, source: Buffer, weight: Buffer, bias_sizes: Sizes | None, stride: Sizes,
    padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, mask: Sequence[bool],
) -> Lowered:  # fmt: skip
    if not 3 <= len(source.shape) <= 5:
        return DECLINED
    numbers, results = _numbers(source, groups, stride, padding, dilation), iter(builder.results)

    def call(routine: str, *inputs: Buffer) -> Buffer:
        (made,) = builder.call(routine, inputs, numbers, [next(results)])
        return made

    to_source = "convolution" if transposed else "convolution_backward_data"
    pair = (gradient, source) if transposed else (source, gradient)
    return (
        call(to_source, gradient, weight) if mask[0] else None,
        call("convolution_backward_weights", *pair) if mask[1] else None,
        _bias_gradient(builder, gradient, next(results)) if mask[2] else None,
    )


def _bias_gradient(builder: Builder, gradient: Buffer, result: Result) -> Buffer:
    others = [dim for dim in range(len(gradient.shape)) if dim != 1]
    return builder.reduce("sum", gradient, others, accumulate="f64", result=result)
