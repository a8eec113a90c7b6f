"""What is largest or smallest, sorting, and order statistics, where NaN counts as torch counts it.

Before: ``amax(f32[3, 4], [1])``
After:  ``Where(ReduceMax(IsNaN(x)), NaN, ReduceMax(x))``

For the largest and the smallest, NaN is both; in sorted order it comes behind everything. ONNX says nothing about it,
and onnxruntime leaves even the numbers beside it in no order.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from precast.onnx.element_types import dtype_of
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule


def as_ordered(x: Any) -> Any:
    """Truth values as numbers, which ONNX can order."""
    if x.dtype != ir.DataType.BOOL:
        return x
    cast = op.Cast(x, to=ir.DataType.INT32)
    cast.shape = x.shape
    return cast


def _has_nan(x: Any, *axes: Any, keepdims: int) -> Any:
    found = op.ReduceMax(op.Cast(op.IsNaN(x), to=ir.DataType.FLOAT), *axes, keepdims=keepdims)
    return op.Cast(found, to=ir.DataType.BOOL)


def extreme(x: Any, reduce: Callable[..., Any], dims: Sequence[int] = (), keepdim: bool = False) -> Any:
    """The largest or smallest along some dimensions, or of all; NaN where there is one."""
    axes = [integers(*dims)] if dims else []
    found = reduce(as_ordered(x), *axes, keepdims=int(keepdim))
    if x.dtype.is_floating_point():
        return op.Where(_has_nan(x, *axes, keepdims=int(keepdim)), number(math.nan, x), found)
    return op.Cast(found, to=x.dtype) if x.dtype == ir.DataType.BOOL else found


def place_of_extreme(x: Any, choose: Callable[..., Any], axis: int, keepdim: bool = False) -> Any:
    """Where the largest or smallest comes up first; the first NaN where there is one."""
    found = choose(as_ordered(x), axis=axis, keepdims=int(keepdim))
    if not x.dtype.is_floating_point():
        return found
    first = op.ArgMax(op.Cast(op.IsNaN(x), to=ir.DataType.INT32), axis=axis, keepdims=int(keepdim))
    return op.Where(_has_nan(x, integers(axis), keepdims=int(keepdim)), first, found)


@rule("aten::max")
def maximum_of_all(x: Any) -> Any:
    return extreme(x, op.ReduceMax) if x.shape else op.Identity(x)


@rule("aten::min")
def minimum_of_all(x: Any) -> Any:
    return extreme(x, op.ReduceMin) if x.shape else op.Identity(x)


@rule("aten::amax")
def maximum(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return extreme(x, op.ReduceMax, dim, keepdim) if x.shape else op.Identity(x)


@rule("aten::amin")
def minimum(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return extreme(x, op.ReduceMin, dim, keepdim) if x.shape else op.Identity(x)


@rule("aten::max.dim")
def maximum_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    return extreme(x, op.ReduceMax, [dim], keepdim), place_of_extreme(x, op.ArgMax, dim, keepdim)


@rule("aten::min.dim")
def minimum_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    return extreme(x, op.ReduceMin, [dim], keepdim), place_of_extreme(x, op.ArgMin, dim, keepdim)


@rule("aten::argmax")
def place_of_maximum(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place(x, op.ArgMax, dim, keepdim)


@rule("aten::argmin")
def place_of_minimum(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place(x, op.ArgMin, dim, keepdim)


def _place(x: Any, choose: Callable[..., Any], dim: int | None, keepdim: bool) -> Any:
    rank = len(x.shape)
    if not rank:
        return integer(0)
    if dim is not None:
        return place_of_extreme(x, choose, dim, keepdim)
    place = place_of_extreme(op.Reshape(x, integers(-1)), choose, 0)
    return op.Reshape(place, integers(*[1] * rank)) if keepdim else place


@rule("aten::any", "aten::any.dim", "aten::any.dims")
def is_any_true(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _as_torch_tells(op.Not(_is_none_true(op.Cast(x, to=ir.DataType.BOOL), x, dim, keepdim)), x)


@rule("aten::all", "aten::all.dim", "aten::all.dims")
def are_all_true(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    false = op.Not(op.Cast(x, to=ir.DataType.BOOL))
    return _as_torch_tells(_is_none_true(false, x, dim, keepdim), x)


def _is_none_true(true: Any, like: Any, dim: Any, keepdim: bool) -> Any:
    """By counting, which is right for no elements, too."""
    if not like.shape:
        return op.Not(true)
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = [integers(*dims)] if dims else []
    counted = op.ReduceSum(op.Cast(true, to=ir.DataType.INT64), *axes, keepdims=int(keepdim))
    return op.Equal(counted, integer(0))


def _as_torch_tells(answer: Any, x: Any) -> Any:
    """Of bytes, torch's answer is a byte."""
    return op.Cast(answer, to=ir.DataType.UINT8) if x.dtype == ir.DataType.UINT8 else answer


@rule("aten::topk")
def largest(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    return _ordered(x, op.Reshape(k, integers(-1)), dim, largest, sorted=sorted)


@rule("aten::sort.stable")
def sort_stable(x: Any, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    # Among equal values TopK returns the lower index first, which is what stable means.
    if not x.shape:
        return op.Identity(x), integer(0)
    return _ordered(x, op.Gather(op.Shape(x), integers(dim)), dim, descending)


@rule("aten::sort")
def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return sort_stable(x, dim=dim, descending=descending)


def _ordered(x: Any, count: Any, dim: int, largest: bool, *, sorted: bool = True) -> tuple[Any, Any]:
    """The first values in order, and where they were."""
    options = {"axis": dim, "largest": int(largest), "sorted": int(sorted)}
    if not x.dtype.is_floating_point():
        values, places = op.TopK(as_ordered(x), count, **options)
        return op.Cast(values, to=x.dtype) if x.dtype == ir.DataType.BOOL else values, places
    # NaN in the place of infinity, and infinity in that of the largest number below it.
    below = number(torch.finfo(dtype_of(x.dtype)).max, x)
    _, places = op.TopK(op.Where(op.IsNaN(x), number(math.inf, x), op.Min(x, below)), count, **options)
    return op.GatherElements(x, places, axis=dim), places


@rule("aten::kthvalue")
def kth_value(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    smallest, indices = _ordered(x, op.Reshape(k, integers(-1)), dim, largest=False)
    last = integers(-1) if keepdim else integer(-1)
    return op.Gather(smallest, last, axis=dim), op.Gather(indices, last, axis=dim)


@rule("aten::median.dim")
def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; NaN where there is one."""
    if not x.shape:
        return op.Identity(x), integer(0)
    size = op.Gather(op.Shape(x), integers(dim))
    value, place = kth_value(x, op.Div(op.Add(size, integers(1)), integers(2)), dim, keepdim)
    if not x.dtype.is_floating_point():
        return value, place
    has_nan = _has_nan(x, integers(dim), keepdims=int(keepdim))
    first = op.ArgMax(op.Cast(op.IsNaN(x), to=ir.DataType.INT32), axis=dim, keepdims=int(keepdim))
    return op.Where(has_nan, number(math.nan, x), value), op.Where(has_nan, first, place)


@rule("aten::median")
def median(x: Any) -> Any:
    return median_along(_flat(x), 0)[0]


@rule("aten::nanmedian.dim")
def median_of_numbers_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle of what is not NaN; NaN where nothing is left."""
    if not x.shape or not x.dtype.is_floating_point():
        return median_along(x, dim, keepdim)
    axis = integers(dim)
    is_nan = op.IsNaN(x)
    # Infinities at the end stand for NaN, and are what is chosen where there is nothing else.
    ascending, order = op.TopK(
        op.Where(is_nan, number(math.inf, x), x), op.Gather(op.Shape(x), axis), axis=dim, largest=0, sorted=1
    )
    count = op.ReduceSum(op.Cast(op.Not(is_nan), to=ir.DataType.INT64), axis, keepdims=1)
    middle = op.Div(op.Max(op.Sub(count, integer(1)), integer(0)), integer(2))
    value = op.GatherElements(ascending, middle, axis=dim)
    value = op.Where(op.Equal(count, integer(0)), number(math.nan, x), value)
    place = op.GatherElements(order, middle, axis=dim)
    return (value, place) if keepdim else (op.Squeeze(value, axis), op.Squeeze(place, axis))


@rule("aten::nanmedian")
def median_of_numbers(x: Any) -> Any:
    return median_of_numbers_along(_flat(x), 0)[0]


def _flat(x: Any) -> Any:
    flat = op.Reshape(x, integers(-1))
    flat.shape = ir.Shape([None])
    return flat
