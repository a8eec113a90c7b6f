"""Sorting, order statistics, and searching in what is sorted."""

import math
from typing import Any

import onnx_ir as ir

from precast.onnx.opsets import integer, integers, number, op
from precast.onnx.rules import rule


@rule("aten::sort.stable")
def sort_stable(x: Any, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    # Among equal values TopK gives the lower index first, which is what stable means.
    if not x.shape:
        return op.Identity(x), integer(0)
    count = op.Gather(op.Shape(x), integers(dim))
    return op.TopK(x, count, axis=dim, largest=int(descending), sorted=1)


@rule("aten::kthvalue")
def kth_value(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    smallest, indices = op.TopK(x, op.Reshape(k, [-1]), axis=dim, largest=0, sorted=1)
    last = integers(-1) if keepdim else integer(-1)
    return op.Gather(smallest, last, axis=dim), op.Gather(indices, last, axis=dim)


@rule("aten::median.dim")
def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle."""
    if not x.shape:
        return op.Identity(x), integer(0)
    size = op.Gather(op.Shape(x), integers(dim))
    return kth_value(x, op.Div(op.Add(size, integers(1)), integers(2)), dim, keepdim)


@rule("aten::median")
def median(x: Any) -> Any:
    flat = op.Reshape(x, [-1])
    size = op.Shape(flat)
    middle = op.Div(op.Add(size, integers(1)), integers(2))
    smallest, _ = op.TopK(flat, middle, axis=0, largest=0, sorted=1)
    return op.Gather(smallest, integer(-1))


@rule("aten::bucketize.Tensor")
def bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _places(x, boundaries, out_int32=out_int32, right=right, rank=len(x.shape))


@rule("aten::bucketize.Scalar", "aten::searchsorted.Scalar")
def bucketize_number(first: Any, second: Any, *, out_int32: bool = False, right: bool = False, **_: Any) -> Any:
    is_search = isinstance(first, ir.Value)
    boundaries, number = (first, second) if is_search else (second, first)
    return _places(op.CastLike(number, boundaries), boundaries, out_int32=out_int32, right=right, rank=0)


@rule("aten::searchsorted.Tensor")
def search_sorted(
    sequence: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        sequence = op.GatherElements(sequence, sorter, axis=-1)
    rows = op.Unsqueeze(sequence, [-2]) if len(sequence.shape) > 1 else sequence
    return _places(x, rows, out_int32=out_int32, right=right or side == "right", rank=len(x.shape))


def _places(x: Any, boundaries: Any, *, out_int32: bool, right: bool, rank: int) -> Any:
    """How many boundaries lie before each element."""
    element = op.Unsqueeze(x, [rank])
    is_before = op.LessOrEqual(boundaries, element) if right else op.Less(boundaries, element)
    counted = op.ReduceSum(op.Cast(is_before, to=ir.DataType.INT64), [-1], keepdims=0)
    return op.Cast(counted, to=ir.DataType.INT32) if out_int32 else counted


@rule("aten::masked_select")
def masked_select(x: Any, mask: Any) -> Any:
    shape = op.Shape(op.Or(mask, op.CastLike(op.ConstantOfShape(op.Shape(x)), mask)))
    return op.Compress(op.Reshape(op.Expand(x, shape), [-1]), op.Reshape(op.Expand(mask, shape), [-1]), axis=0)


@rule("aten::take")
def take(x: Any, index: Any) -> Any:
    return op.Gather(op.Reshape(x, [-1]), index, axis=0)


@rule("aten::topk")
def largest(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.shape:
        return op.Identity(x), integer(0)
    return op.TopK(x, op.Reshape(k, integers(-1)), axis=dim, largest=int(largest), sorted=int(sorted))


@rule("aten::nanmedian.dim")
def median_of_numbers_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle of what is not NaN; NaN where nothing is left."""
    if not x.shape:
        return op.Identity(x), integer(0)
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
    flat = op.Reshape(x, integers(-1))
    flat.shape = ir.Shape([None])
    return median_of_numbers_along(flat, 0)[0]
