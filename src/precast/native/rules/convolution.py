"""GEMMs and convolutions: library calls; bias and scale are loops that fuse with what follows.

A transposed convolution is the gradient of a convolution with respect to its input, and vice versa, so three
routines serve both. Depthwise ones have a routine of their own, with a prologue and an epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, as_index, constant
from precast.native.loops.scalars import Constant, Load, Scalar, cast
from precast.native.rules.builder import Builder, Result, math_dtype
from precast.native.rules.registry import DECLINED, Lowered, lowering
from precast.ops.own_operators import grouped_rows, grouped_sums

aten = torch.ops.aten

Sizes = Sequence[Index | int]

OWN_WIDTHS = (3, 5, 7)
"""Sizes of depthwise filters that the routine ``depthwise_convolution`` supports."""


def _numbers(source: Buffer, groups: int, *geometry: Sizes) -> list[Index | int]:
    """The routines' numbers: groups, strides, padding, dilation; one value may stand for all dimensions."""
    spatial = len(source.shape) - 2
    whole = [sizes if len(sizes) == spatial else [sizes[0]] * spatial for sizes in geometry]
    return [groups, *(number for sizes in whole for number in sizes)]


def is_depthwise(source: Buffer, weight: Buffer, groups: int, numbers: Sequence[Index | int]) -> bool:
    """Whether this is a convolution for our own routine: each channel has its own, small filter."""
    if source.dtype != "f32" or len(source.shape) != 4 or source.shape[1].constant != groups:
        return False
    _, _, stride, _, _, *dilation = (as_index(number).constant for number in numbers)
    outputs, _, height, width = (size.constant for size in weight.shape)
    is_small = width in OWN_WIDTHS and height is not None and height <= max(OWN_WIDTHS)
    return outputs == groups > 1 and is_small and stride in (1, 2) and dilation == [1, 1]


@lowering(aten.convolution.default)
def convolution(
    builder: Builder, source: Buffer, weight: Buffer, bias: Buffer | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Lowered:  # fmt: skip
    if not 3 <= len(source.shape) <= 5:
        return DECLINED
    numbers = _numbers(source, groups, stride, padding, dilation)
    has_own = not transposed and builder.has_routine("depthwise_convolution")
    is_own = has_own and is_depthwise(source, weight, groups, numbers)
    forward = "depthwise_convolution" if is_own else "convolution"
    result = builder.multiply("convolution_backward_data" if transposed else forward, [source, weight], numbers)
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
        return builder.multiply(routine, inputs, numbers, next(results))

    to_source = "convolution" if transposed else "convolution_backward_data"
    pair = (gradient, source) if transposed else (source, gradient)
    return (
        call(to_source, gradient, weight) if mask[0] else None,
        call("convolution_backward_weights", *pair) if mask[1] else None,
        _bias_gradient(builder, gradient, next(results)) if mask[2] else None,
    )


def _bias_gradient(builder: Builder, gradient: Buffer, result: Result) -> Buffer:
    if constant(0) in gradient.shape:
        # Without channels, torch keeps the input's shape: there are fewer gradients than biases.
        return builder.define(lambda at: Constant(0, result.dtype), result)
    others = [dim for dim in range(len(gradient.shape)) if dim != 1]
    return builder.reduce("sum", gradient, others, accumulate="f64", result=result)


@lowering(aten.mm.default, aten.bmm.default)
def matmul(builder: Builder, left: Buffer, right: Buffer) -> Buffer:
    return builder.matmul(left, right)


@lowering(aten.addmm.default, aten.baddbmm.default)
def add_matmul(
    builder: Builder, bias: Buffer, left: Buffer, right: Buffer, *, beta: float = 1, alpha: float = 1
) -> Buffer:
    product = builder.matmul(left, right)
    if beta == 0:
        # Eager does not read the bias then: its NaNs do not propagate.
        return builder.pointwise(lambda value: value * alpha, product)
    if product.dtype in ("bf16", "f16") and 2**-10 < abs(beta) < 2**10:
        # Like an epilogue, so that the product is rounded once, as in eager.
        return builder.pointwise(
            lambda value, added: _scaled(_scaled(value, alpha / beta) + added, beta), product, bias
        )
    return builder.pointwise(lambda value, added: _scaled(added, beta) + _scaled(value, alpha), product, bias)


@lowering(grouped_rows)
def rows_of_groups(builder: Builder, rows: Buffer, matrices: Buffer, ends: Buffer) -> Lowered:
    return _grouped(builder, rows, matrices, ends, is_sum=False)


@lowering(grouped_sums)
def sums_of_groups(builder: Builder, left: Buffer, right: Buffer, ends: Buffer) -> Lowered:
    return _grouped(builder, left, right, ends, is_sum=True)


def _grouped(builder: Builder, left: Buffer, right: Buffer, ends: Buffer, *, is_sum: bool) -> Lowered:
    if left.dtype == "f16":
        # The routine computes in the type of its operands, and few processors multiply this one.
        return DECLINED
    (result,) = builder.call("grouped_product", [left, right, ends], [int(is_sum)])
    return result


def _scaled(value: Scalar, factor: float) -> Scalar:
    return value if factor == 1 else value * factor
