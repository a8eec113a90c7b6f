"""Scaled-dot-product attention and its gradient: a blockwise routine, so that scores stay in cache.

In double precision: GEMMs, and one pass over each row of scores between them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from ctypes import c_float

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import floor_divide
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, broadcast_indices, element, math_dtype
from precast.native.rules.conditions import compare
from precast.native.rules.registry import DECLINED, Lowered, lowering

aten = torch.ops.aten

MINUS_INFINITY = float("-inf")
ROUTINE_TYPES = ("f32", "bf16", "f16")


def _operands(mask: Buffer | None, builder: Builder, query: Buffer, key: Buffer) -> list[Buffer]:
    """The operands, with the mask broadcast to the shape of the scores."""
    if mask is None:
        return []
    shape = (*query.shape[:-1], key.shape[-2])
    return [builder.define(lambda at: Load(mask, broadcast_indices(mask.shape, at)), Result(mask.dtype, shape))]


def _numbers(mask: Buffer | None, is_causal: bool, scale: float | None) -> list[int]:
    """The routine's numbers: whether it is causal, whether there is a mask, and the scale's bits; -1 is the default."""
    # Unsigned, since the scale may be negative; C's conversion makes overflowing values infinite.
    bits = -1 if scale is None else struct.unpack("I", bytes(c_float(scale)))[0]
    return [int(is_causal), int(mask is not None), bits]


def _has_routine(*operands: Buffer) -> bool:
    return all(each.dtype in ROUTINE_TYPES and each.shape[-1] == operands[0].shape[-1] for each in operands)


def _transposed(builder: Builder, matrix: Buffer) -> Buffer:
    shape = (*matrix.shape[:-2], matrix.shape[-1], matrix.shape[-2])
    return builder.define(lambda at: Load(matrix, (*at[:-2], at[-1], at[-2])), Result(matrix.dtype, shape))


def _single(builder: Builder, matrix: Buffer) -> Buffer:
    """`matrix` converted to the type that attention is computed in."""
    dtype = math_dtype(matrix.dtype)
    if dtype == matrix.dtype:
        return matrix
    return builder.define(lambda at: cast(Load(matrix, at), dtype), Result(dtype, matrix.shape))


def _product(builder: Builder, left: Buffer, right: Buffer, result: Result | None = None) -> Buffer:
    """The product in the type of its operands; converted to `result`, if given."""
    shape = (*left.shape[:-1], right.shape[-1])
    if result is not None and result.dtype == left.dtype:
        return builder.matmul(left, right, result)
    product = builder.matmul(left, right, Result(left.dtype, shape))
    return product if result is None else builder.define(lambda at: Load(product, at), result)


def _scores(
    builder: Builder, query: Buffer, key: Buffer, mask: Buffer | None, is_causal: bool, scale: float | None
) -> Callable[[Indices], Scalar]:
    """The argument of the softmax, as a formula over the product of queries and keys."""
    with builder.part("scores"):
        product = _product(builder, query, _transposed(builder, key))
    factor = _factor(query, scale)

    def score(at: Indices) -> Scalar:
        value = Load(product, at) * factor
        if mask is not None:
            value = value + element(mask, at, value.dtype)
        if is_causal:
            return apply("where", compare("le", at[-1], at[-2]), value, Constant(MINUS_INFINITY, value.dtype))
        return value

    return score


def _factor(query: Buffer, scale: float | None) -> Scalar:
    """The scale of the scores: by default, one over the root of the head size."""
    if scale is not None:
        return Constant(scale, query.dtype)
    depth = query.shape[-1]
    if depth.constant is not None:
        return Constant(1 / math.sqrt(depth.constant or 1), query.dtype)
    return cast(1.0 / apply("sqrt", IndexValue(depth, "f64")), query.dtype)


def _is_known(query: Buffer, key: Buffer, dropout: float) -> bool:
    return not dropout and query.shape[:2] == key.shape[:2]


def _of_each_head(builder: Builder, query: Buffer, matrix: Buffer) -> Buffer:
    """Keys or values of every head of the query: groups of heads may share them."""
    heads, shared = query.shape[1].constant, matrix.shape[1].constant
    if heads == shared or heads is None or not shared or heads % shared:
        return matrix
    group, shape = heads // shared, (matrix.shape[0], query.shape[1], *matrix.shape[2:])
    with builder.part("shared"):
        return builder.define(
            lambda at: Load(matrix, (at[0], floor_divide(at[1], group), *at[2:])), Result(matrix.dtype, shape)
        )


@lowering(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    builder: Builder, query: Buffer, key: Buffer, value: Buffer, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Buffer | None = None, scale: float | None = None,
) -> Lowered:  # fmt: skip
    key, value = (_of_each_head(builder, query, each) for each in (key, value))
    if not _is_known(query, key, dropout_p):
        return DECLINED
    if builder.has_routine("attention") and _has_routine(query, key, value):
        operands = [query, key, value, *_operands(attn_mask, builder, query, key)]
        return builder.call("attention", operands, _numbers(attn_mask, is_causal, scale))
    output, sums = builder.results
    query, key, value = (_single(builder, each) for each in (query, key, value))
    score = _scores(builder, query, key, attn_mask, is_causal, scale)
    shape, dtype = (*query.shape[:-1], key.shape[-2]), query.dtype
    rows = Result(dtype, query.shape[:-1])
    with builder.part("peak"):
        peak = builder.combine("max", shape, (3,), score, result=rows)

    def power(at: Indices) -> Scalar:
        top = Load(peak, at[:3])
        # A fully masked row has no largest score, and its result is 0.
        is_blind = apply("eq", top, as_scalar(MINUS_INFINITY, dtype))
        return apply("exp", score(at) - apply("where", is_blind, as_scalar(0, dtype), top))

    with builder.part("powers"):
        powers = builder.define(power, Result(dtype, shape))
        total = builder.combine("sum", shape, (3,), lambda at: Load(powers, at), result=rows, accumulate="f64")

    def weight(at: Indices) -> Scalar:
        sum_ = Load(total, at[:3])
        return Load(powers, at) / apply("where", apply("eq", sum_, as_scalar(0, dtype)), as_scalar(1, dtype), sum_)

    with builder.part("weights"):
        weights = builder.define(weight, Result(dtype, shape))
    result = _product(builder, weights, value, output)

    def logarithm(top: Scalar, sum_: Scalar) -> Scalar:
        is_blind = apply("eq", sum_, as_scalar(0, dtype))
        return apply("where", is_blind, as_scalar(0, dtype), top + apply("log", sum_))

    return result, builder.pointwise(logarithm, peak, total, compute=dtype, result=sums)


@lowering(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    builder: Builder, gradient: Buffer, query: Buffer, key: Buffer, value: Buffer, output: Buffer, sums: Buffer,
    dropout_p: float, is_causal: bool, *, attn_mask: Buffer | None = None, scale: float | None = None,
) -> Lowered:  # fmt: skip
    if not _is_known(query, key, dropout_p):
        return DECLINED
    if builder.has_routine("attention_backward") and _has_routine(query, key, value):
        operands = [gradient, query, key, value, output, sums, *_operands(attn_mask, builder, query, key)]
        return builder.call("attention_backward", operands, _numbers(attn_mask, is_causal, scale))
    to_query, to_key, to_value = builder.results
    gradient, query, key, value = (_single(builder, each) for each in (gradient, query, key, value))
    score = _scores(builder, query, key, attn_mask, is_causal, scale)
    shape, dtype = (*query.shape[:-1], key.shape[-2]), query.dtype
    factor = _factor(query, scale)

    def weight(at: Indices) -> Scalar:
        return apply("exp", score(at) - cast(Load(sums, at[:3]), dtype))

    with builder.part("weights"):
        weights = builder.define(weight, Result(dtype, shape))
        slopes = _product(builder, gradient, _transposed(builder, value))
        inner = builder.reduce("sum", gradient, (3,), accumulate="f64", result=Result(dtype, query.shape[:-1]),
                               prepare=lambda dy, at: dy * cast(Load(output, at), dtype))  # fmt: skip

    def pulled(at: Indices) -> Scalar:
        return Load(weights, at) * (Load(slopes, at) - Load(inner, at[:3])) * factor

    with builder.part("pulled"):
        pulls = builder.define(pulled, Result(dtype, shape))
    return (
        _product(builder, pulls, key, to_query),
        _product(builder, _transposed(builder, pulls), query, to_key),
        _product(builder, _transposed(builder, weights), gradient, to_value),
    )
