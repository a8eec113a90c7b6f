"""Counting and searching.

How often values occur (histograms, modes, runs of equal values), and binary search.
"""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core

from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.ordering import as_ordered
from precast.onnx.rules.registry import rule

_INT64 = ir.DataType.INT64


@rule("aten::histc")
def counts_in_bins(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    lowest, highest = _range(x, None if min == max else (min, max), around=1)
    return _histogram(x, bins, lowest, highest, None)


@rule("aten::histogram.bin_ct")
def histogram(
    x: Any, bins: int = 100, *, range: Sequence[float] | None = None, weight: Any = None, density: bool = False
) -> Any:
    lowest, highest = _range(x, range, around=0.5)
    edges = op.Add(lowest, op.Mul(_steps(bins, x), op.Div(op.Sub(highest, lowest), number(bins, x))))
    counts = _histogram(x, bins, lowest, highest, weight)
    if density:
        counts = op.Div(counts, op.Mul(op.ReduceSum(counts), op.Div(op.Sub(highest, lowest), number(bins, x))))
    return counts, edges


@rule("aten::histogram.bins_tensor")
def histogram_of_edges(x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    flat = op.Unsqueeze(op.Reshape(x, integers(-1)), integers(1))
    count = op.Sub(op.Shape(bins), integers(1))
    last = op.Gather(bins, integers(-1))
    passed = op.ReduceSum(op.Cast(op.LessOrEqual(bins, flat), to=_INT64), integers(1), keepdims=0)
    row = op.Squeeze(flat, integers(1))
    place = op.Where(op.Equal(row, last), op.Sub(count, integers(1)), op.Sub(passed, integers(1)))
    is_inside = op.And(op.GreaterOrEqual(row, op.Gather(bins, integers(0))), op.LessOrEqual(row, last))
    counts = _counted(op.Where(is_inside, place, count), count, weight, x)
    if density:
        widths = op.Sub(op.Slice(bins, integers(1), op.Shape(bins)), op.Slice(bins, integers(0), integers(-1)))
        counts = op.Div(op.Div(counts, widths), op.ReduceSum(counts))
    return counts, op.Identity(bins)


def _range(x: Any, given: Sequence[float] | None, *, around: float) -> tuple[Any, Any]:
    """The range of a histogram: as given, or that of the data; a single value is extended by ``around``."""
    if given is not None:
        return number(given[0], x), number(given[1], x)
    lowest, highest = op.ReduceMin(x, keepdims=0), op.ReduceMax(x, keepdims=0)
    is_point = op.Equal(lowest, highest)
    margin = op.Where(is_point, number(around, x), number(0, x))
    return op.Sub(lowest, margin), op.Add(highest, margin)


def _steps(bins: int, like: Any) -> Any:
    return op.Cast(op.Range(integer(0), integer(bins + 1), integer(1)), to=like.dtype)


def _histogram(x: Any, bins: int, lowest: Any, highest: Any, weight: Any) -> Any:
    """Counts in bins of equal width; the last one includes both ends."""
    flat = op.Reshape(x, integers(-1))
    place = op.Floor(op.Div(op.Mul(op.Sub(flat, lowest), number(bins, x)), op.Sub(highest, lowest)))
    place = op.Where(op.Equal(flat, highest), number(bins - 1, x), place)
    is_inside = op.And(op.GreaterOrEqual(flat, lowest), op.LessOrEqual(flat, highest))
    return _counted(op.Where(is_inside, place, number(bins, x)), integers(bins), weight, x)


def _counted(places: Any, bins: Any, weight: Any, like: Any) -> Any:
    """The count at each position; values out of range are counted in an extra one, which is dropped."""
    zeros = op.ConstantOfShape(op.Add(bins, integers(1)), value=ir.tensor([0], dtype=like.dtype))
    ones = op.ConstantOfShape(op.Shape(places), value=ir.tensor([1], dtype=like.dtype))
    updates = ones if weight is None else op.Reshape(weight, integers(-1))
    counts = op.ScatterElements(zeros, op.Cast(places, to=_INT64), updates, axis=0, reduction="add")
    return op.Slice(counts, integers(0), bins, integers(0))


@rule("aten::mode")
def mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent value, the smallest if there are several, and the index of its last occurrence."""
    if not x.shape:
        return op.Identity(x), integer(0)
    rank, axis = len(x.shape), dim % len(x.shape)
    order = [*(other for other in range(rank) if other != axis), axis]
    rows = op.Transpose(as_ordered(x), perm=order)
    is_equal = op.Equal(op.Unsqueeze(rows, integers(-1)), op.Unsqueeze(rows, integers(-2)))
    counts = op.ReduceSum(op.Cast(is_equal, to=_INT64), integers(-1), keepdims=0)
    is_most = op.Equal(counts, op.ReduceMax(counts, integers(-1), keepdims=1))
    largest = op.ReduceMax(rows, integers(-1), keepdims=1)
    value = op.ReduceMin(op.Where(is_most, rows, largest), integers(-1), keepdims=1)
    place = op.ArgMax(op.Cast(op.Equal(rows, value), to=ir.DataType.INT32), axis=-1, select_last_index=1)
    value = op.Squeeze(op.Cast(value, to=x.dtype) if x.dtype == ir.DataType.BOOL else value, integers(-1))
    place = op.Squeeze(place, integers(-1))
    return (op.Unsqueeze(value, integers(axis)), op.Unsqueeze(place, integers(axis))) if keepdim else (value, place)


@rule("aten::bincount")
def counts_of_integers(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if weights is None:
        return core.aten_bincount(x, None, minlength)
    if weights.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        weights = op.Cast(weights, to=ir.DataType.DOUBLE)
    wide = op.Cast(x, to=_INT64)
    # Counting from -1, there is a largest of none.
    largest = op.ReduceMax(op.Concat(wide, integers(-1), axis=0), keepdims=0)
    bins = op.Max(op.Reshape(op.Add(largest, integer(1)), integers(-1)), integers(minlength))
    return _counted(wide, bins, weights, weights)


_WITH_UNIQUE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.INT8)


@rule("aten::_unique2")
def unique(x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    values, *others = core.aten__unique2(_with_unique(x), sorted, return_inverse, return_counts)
    return _cast_back(values, x), *others


@rule("aten::unique_dim")
def unique_rows(
    x: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    values, *others = core.aten_unique_dim(_with_unique(x), dim, sorted, return_inverse, return_counts)
    return _cast_back(values, x), *others


def _with_unique(x: Any) -> Any:
    """In a type that holds all its values, for which onnxruntime has a kernel."""
    return x if x.dtype in _WITH_UNIQUE else op.Cast(x, to=ir.DataType.FLOAT if x.dtype.is_floating_point() else _INT64)


def _cast_back(values: Any, x: Any) -> Any:
    return values if x.dtype in _WITH_UNIQUE else op.Cast(values, to=x.dtype)


@rule("aten::unique_consecutive")
def runs(x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The first of each run of equal values, the run of each value, and the lengths of runs."""
    rank = len(x.shape)
    shape = op.Shape(x)
    axis = 0 if dim is None or not rank else dim % rank
    rows = op.Reshape(x, integers(-1)) if dim is None or not rank else x
    length = op.Shape(rows, start=axis, end=axis + 1)
    before = op.Slice(rows, integers(0), integers(-1), integers(axis))
    after = op.Slice(rows, integers(1), length, integers(axis))
    differs = op.Cast(op.Not(op.Equal(after, before)), to=_INT64)
    others = [other for other in range(rank) if other != axis] if dim is not None else []
    differs = op.ReduceMax(differs, integers(*others), keepdims=0) if others else differs
    begins = op.Concat(integers(1), differs, axis=0)
    values = op.Compress(rows, op.Cast(begins, to=ir.DataType.BOOL), axis=axis)
    run = op.Sub(op.CumSum(begins, integer(0)), integer(1))
    inverse = op.Reshape(run, shape) if dim is None else run
    starts = op.Reshape(op.NonZero(begins), integers(-1))
    ends = op.Concat(op.Slice(starts, integers(1), op.Shape(starts), integers(0)), length, axis=0)
    empty = op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=_INT64))
    return values, inverse if return_inverse else empty, op.Sub(ends, starts) if return_counts else empty


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
    """The number of boundaries before each element."""
    element = op.Unsqueeze(x, [rank])
    # Said the other way round, since NaN belongs behind everything.
    is_behind = op.Greater(boundaries, element) if right else op.GreaterOrEqual(boundaries, element)
    is_before = op.Not(is_behind)
    counted = op.ReduceSum(op.Cast(is_before, to=ir.DataType.INT64), [-1], keepdims=0)
    return op.Cast(counted, to=ir.DataType.INT32) if out_int32 else counted


@rule("aten::masked_select")
def masked_select(x: Any, mask: Any) -> Any:
    shape = op.Shape(op.Or(mask, op.CastLike(op.ConstantOfShape(op.Shape(x)), mask)))
    return op.Compress(op.Reshape(op.Expand(x, shape), [-1]), op.Reshape(op.Expand(mask, shape), [-1]), axis=0)


@rule("aten::take")
def take(x: Any, index: Any) -> Any:
    return op.Gather(op.Reshape(x, [-1]), index, axis=0)
