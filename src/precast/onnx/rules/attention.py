"""Scaled dot product attention, in few nodes: one scale, one transpose of the keys, one softmax.

From opset 23 on it is one ``Attention`` node.
"""

import math
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.opsets import integers, number, op, op23
from precast.onnx.rules.random import dropped
from precast.onnx.rules.registry import rule

_SDPA = "aten::scaled_dot_product_attention"


@rule(_SDPA)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        key, value = _repeated(key, query), _repeated(value, query)
    rank = len(query.shape)
    transposed = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(op.Mul(query, _scale(query, scale)), transposed)
    if is_causal:
        scores = op.Add(scores, _as_bias(_causal_mask(query, key), query))
    if attn_mask is not None:
        scores = op.Add(scores, _as_bias(attn_mask, query) if _is_bool(attn_mask) else attn_mask)
    weights = dropped(op.Softmax(scores, axis=-1), dropout_p)
    return _without_blind_rows(op.MatMul(weights, value), attn_mask, query)


@rule(_SDPA, since=23)
def attention_node(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if len(query.shape) != 4 or dropout_p:
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    # A fully masked row is zero here too.
    result, *_ = op23.Attention(query, key, value, attn_mask, scale=scale, is_causal=int(is_causal))
    return result


def _is_bool(mask: Any) -> bool:
    return mask is not None and bool(mask.dtype == ir.DataType.BOOL)


def _as_bias(mask: Any, like: Any) -> Any:
    """The addend for scores, minus infinity where masked; layers that share a mask share this too."""
    return op.Where(mask, number(0.0, like), number(-math.inf, like))


def _without_blind_rows(result: Any, mask: Any, like: Any) -> Any:
    """Softmax returns NaN for a fully masked row; torch defines the result as zero."""
    if not _is_bool(mask):
        return result
    sees_something = op.ReduceMax(op.Cast(mask, to=ir.DataType.INT32), [-1], keepdims=1)
    return op.Where(op.Cast(sees_something, to=ir.DataType.BOOL), result, number(0.0, like))


def _scale(query: Any, scale: float | None) -> Any:
    width = query.shape[-1]
    if scale is None and isinstance(width, int):
        scale = 1 / math.sqrt(width)
    if scale is not None:
        return number(scale, query)
    return op.Reciprocal(op.Sqrt(op.CastLike(op.Squeeze(op.Shape(query, start=-1)), query)))


def _causal_mask(query: Any, key: Any) -> Any:
    shape = op.Concat(op.Shape(query, start=-2, end=-1), op.Shape(key, start=-2, end=-1), axis=0)
    ones = op.ConstantOfShape(shape, value=ir.tensor([1], dtype=ir.DataType.INT32))
    return op.Cast(op.Trilu(ones, upper=0), to=ir.DataType.BOOL)


def _repeated(x: Any, query: Any) -> Any:
    """Repeat each head of keys or values for all query heads that share it."""
    heads, times = x.shape[-3], query.shape[-3] // x.shape[-3]
    if times == 1:
        return x
    rank = len(x.shape)
    copies = op.Expand(op.Unsqueeze(x, [rank - 2]), integers(*[1] * (rank - 2), times, 1, 1))
    outer, inner = op.Shape(x, end=rank - 3), op.Shape(x, start=rank - 2)
    return op.Reshape(copies, op.Concat(outer, op.Constant(value_ints=[heads * times]), inner, axis=0))
