"""Softmax and its relatives, as reductions and formulas over rows; fusion makes one pass over each row of them."""

from __future__ import annotations

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.scalars import Load, Scalar, apply
from precast.lower.builder import Builder, Indices, Result, broadcast_indices, is_floating, math_dtype
from precast.lower.reduction import kept_result, reduced_dims
from precast.lower.registry import DECLINED, Lowered, lowering

aten = torch.ops.aten


def _row_sum(builder: Builder, source: Buffer, dims: tuple[int, ...], dtype: str) -> Buffer:
    return builder.reduce("sum", source, dims, accumulate="f64", result=kept_result(source, dims, dtype))


@lowering(aten._softmax.default)
def softmax(builder: Builder, source: Buffer, dim: int, half_to_float: bool) -> Lowered:
    if not is_floating(source.dtype):
        # Eager takes whole numbers where there are none.
        return DECLINED
    dims, dtype = reduced_dims(source, dim), math_dtype(source.dtype)
    peak = builder.reduce("max", source, dims, result=kept_result(source, dims, dtype))
    powers_result = Result(dtype, source.shape)
    powers = builder.pointwise(lambda x, top: apply("exp", x - top), source, peak, result=powers_result)
    return builder.pointwise(lambda power, total: power / total, powers, _row_sum(builder, powers, dims, dtype))


@lowering(aten._log_softmax.default)
def log_softmax(builder: Builder, source: Buffer, dim: int, half_to_float: bool) -> Lowered:
    if not is_floating(source.dtype):
        # Eager takes whole numbers where there are none.
        return DECLINED
    dims, dtype = reduced_dims(source, dim), math_dtype(source.dtype)
    peak = builder.reduce("max", source, dims, result=kept_result(source, dims, dtype))

    def power(value: Scalar, at: Indices) -> Scalar:
        return apply("exp", value - Load(peak, broadcast_indices(peak.shape, at)))

    total = builder.reduce(
        "sum", source, dims, prepare=power, accumulate="f64", result=kept_result(source, dims, dtype)
    )
    return builder.pointwise(lambda x, top, sum_: (x - top) - apply("log", sum_), source, peak, total)


@lowering(aten._softmax_backward_data.default)
def softmax_backward(builder: Builder, gradient: Buffer, result: Buffer, dim: int, input_dtype: torch.dtype) -> Buffer:
    dims, dtype = reduced_dims(result, dim), math_dtype(result.dtype)
    products = builder.pointwise(lambda dy, y: dy * y, gradient, result, result=Result(dtype, result.shape))
    total = _row_sum(builder, products, dims, dtype)
    return builder.pointwise(lambda product, y, sum_: product - y * sum_, products, result, total)


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    builder: Builder, gradient: Buffer, result: Buffer, dim: int, input_dtype: torch.dtype
) -> Buffer:
    total = _row_sum(builder, gradient, reduced_dims(result, dim), math_dtype(result.dtype))
    return builder.pointwise(lambda dy, y, sum_: dy - apply("exp", y) * sum_, gradient, result, total)
