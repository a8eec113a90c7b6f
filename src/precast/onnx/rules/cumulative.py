"""Cumulative products, maxima, minima and sums of exponentials: a ``Scan`` over the elements."""

import math
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.loops import scan
from precast.onnx.rules.opsets import integer, number, op
from precast.onnx.rules.ordering import as_ordered
from precast.onnx.rules.pointwise import log_add_exp
from precast.onnx.rules.registry import rule

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


@rule("aten::cumprod")
def running_product(x: Any, dim: int, *, dtype: int = -1) -> Any:
    rank = len(x.shape)
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    if not rank:
        return op.Identity(x)

    def step(product: Any, element: Any) -> tuple[list[Any], list[Any]]:
        following = op.Mul(product, element)
        return [following], [following]

    axis = dim % rank
    return scan(step, [_ones(x, axis)], [(x, axis)], output_axis=axis)[1]


@rule("aten::cummax")
def running_maximum(x: Any, dim: int) -> Any:
    return _running_extreme(x, dim, op.GreaterOrEqual)


@rule("aten::cummin")
def running_minimum(x: Any, dim: int) -> Any:
    return _running_extreme(x, dim, op.LessOrEqual)


def _running_extreme(x: Any, dim: int, is_better: Any) -> Any:
    """The extreme so far and its index; of equal ones the last, and NaN wins."""
    if not x.shape:
        return op.Identity(x), integer(0)
    if x.dtype == ir.DataType.BOOL:
        values, indices = _running_extreme(as_ordered(x), dim, is_better)
        return op.Cast(values, to=x.dtype), indices
    axis = dim % len(x.shape)
    count = op.Squeeze(op.Shape(x, start=axis, end=axis + 1))
    numbers = op.Range(integer(0), count, integer(1))
    first = _first(x, axis)
    start = op.Expand(integer(0), op.Shape(first))

    def step(best: Any, place: Any, element: Any, index: Any) -> tuple[list[Any], list[Any]]:
        replaces = is_better(element, best)
        if x.dtype in _FLOATS:
            replaces = op.Or(op.And(replaces, op.Not(op.IsNaN(best))), op.IsNaN(element))
        best, place = op.Where(replaces, element, best), op.Where(replaces, index, place)
        return [best, place], [best, place]

    _, _, values, indices = scan(step, [first, start], [(x, axis), (numbers, 0)], output_axis=axis)
    return values, indices


@rule("aten::logcumsumexp", "aten::_logcumsumexp")
def running_log_sum_exp(x: Any, dim: int) -> Any:
    """Step by step: relative to the largest of all, a sum of much smaller ones would vanish."""
    if not x.shape:
        return op.Identity(x)
    axis = dim % len(x.shape)

    def step(total: Any, element: Any) -> tuple[list[Any], list[Any]]:
        following = log_add_exp(total, element)
        return [following], [following]

    start = op.Expand(number(-math.inf, x), op.Shape(_first(x, axis)))
    start.dtype = x.dtype
    return scan(step, [start], [(x, axis)], output_axis=axis)[1]


def _first(x: Any, axis: int) -> Any:
    """The first element along an axis, which is removed."""
    return op.Gather(x, integer(0), axis=axis)


def _ones(x: Any, axis: int) -> Any:
    return op.ConstantOfShape(op.Shape(_first(x, axis)), value=ir.tensor([1], dtype=x.dtype))
