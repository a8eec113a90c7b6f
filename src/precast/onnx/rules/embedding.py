"""Operators that read or write at given indices.

Bags of embeddings: rows of a table are looked up and reduced bag by bag. Torchlib uses a loop of nested branches,
which crashes onnxruntime. Here each row is scattered into its bag.

Also operators that write parts of a tensor: scatter with a reduction, writing through views, flat indices.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from precast.onnx.rules.division import floor_divide
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule, static_shape

_SUM, _MEAN, _MAX = range(3)


@rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::embedding_bag")
def embedding_bag(
    table: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """The bags; torch's other results serve the backward alone."""
    starts = op.Slice(offsets, [0], [-1], [0]) if include_last_offset else offsets
    bags = _bag_of_each(indices, starts)
    counted = None if padding_idx < 0 else op.Not(op.Equal(indices, op.CastLike(padding_idx, indices)))
    rows = op.Gather(table, indices)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, [1]))
    if mode == _MAX:
        return _largest(rows, bags, starts, counted), None, None, None
    total = _scattered(_kept(rows, counted, 0.0), bags, starts, 0.0, "add")
    if mode == _MEAN:
        ones = op.ConstantOfShape(op.Shape(indices), value=ir.tensor([1.0], dtype=table.dtype))
        ones = ones if counted is None else op.Cast(counted, to=table.dtype)
        counts = _scattered(op.Unsqueeze(ones, [1]), bags, starts, 0.0, "add")
        total = op.Div(total, op.Max(counts, number(1.0, table)))
    return total, None, None, None


@rule("aten::embedding_bag.padding_idx")
def embedding_bag_with_padding(
    table: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Any:
    padding = -1 if padding_idx is None else padding_idx % table.shape[0]
    return embedding_bag(
        table, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding
    )


def _bag_of_each(indices: Any, starts: Any) -> Any:
    """The number of each index's bag: the number of bags that start at or before it, less one."""
    # An empty bag may start after the last index: it needs a position to be counted at.
    places = op.Add(op.Shape(indices), integers(1))
    zeros = op.ConstantOfShape(places, value=ir.tensor([0], dtype=ir.DataType.INT64))
    ones = op.ConstantOfShape(op.Shape(starts), value=ir.tensor([1], dtype=ir.DataType.INT64))
    begun = op.ScatterElements(zeros, op.Cast(starts, to=ir.DataType.INT64), ones, axis=0, reduction="add")
    axis = integer(0)
    started = op.Slice(op.CumSum(begun, axis), [0], [-1], [0])
    return op.Unsqueeze(op.Sub(started, integers(1)), [1])


def _scattered(rows: Any, bags: Any, starts: Any, start: float, reduction: str) -> Any:
    """One row for each bag, into which all its rows are reduced."""
    shape = op.Concat(op.Shape(starts), op.Shape(rows, start=1), axis=0)
    empty = op.ConstantOfShape(shape, value=ir.tensor([start], dtype=rows.dtype))
    return op.ScatterND(empty, bags, rows, reduction=reduction)


def _kept(rows: Any, counted: Any, otherwise: float) -> Any:
    """The rows, without padding."""
    return rows if counted is None else op.Where(op.Unsqueeze(counted, [1]), rows, number(otherwise, rows))


def _largest(rows: Any, bags: Any, starts: Any, counted: Any) -> Any:
    """Maxima; those of empty bags are zero."""
    largest = _scattered(_kept(rows, counted, -math.inf), bags, starts, -math.inf, "max")
    is_empty = op.Equal(largest, number(-math.inf, rows))
    return op.Where(is_empty, number(0.0, rows), largest)


_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


@rule("aten::scatter.src")
def scatter(x: Any, dim: int, index: Any, source: Any) -> Any:
    """The source may be larger than the index; torchlib passes all of it on, which ONNX does not allow."""
    if not x.shape:
        return _as_scalar(op.ScatterElements(*(_as_vector(value) for value in (x, index, source)), axis=0))
    index, source = _as_vector(index) if not index.shape else index, _as_vector(source) if not source.shape else source
    return op.ScatterElements(x, index, _cut(source, index), axis=dim)


@rule("aten::scatter.value")
def scatter_number(x: Any, dim: int, index: Any, value: Any) -> Any:
    source = op.Expand(op.CastLike(value, x), op.Shape(index))
    source.shape = index.shape
    return scatter(x, dim, index, source)


@rule("aten::scatter_reduce.two")
def scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if not x.shape:
        vectors = (_as_vector(value) for value in (x, index, source))
        return _as_scalar(_scatter_reduce(*vectors, axis=0, reduce=reduce, include_self=include_self))
    if not index.shape:
        index = _as_vector(index)
    source = _as_vector(source) if not source.shape else source
    cut = _cut(source, index)
    return _scatter_reduce(x, index, cut, axis=dim, reduce=reduce, include_self=include_self)


@rule("aten::scatter_add")
def scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return scatter_reduce(x, dim, index, source, "sum")


@rule("aten::scatter.reduce")
def scatter_by(x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    return scatter_reduce(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@rule("aten::scatter.value_reduce")
def scatter_number_by(x: Any, dim: int, index: Any, value: float, *, reduce: str) -> Any:
    source = op.Expand(number(value, x), op.Shape(index))
    source.shape = index.shape
    return scatter_by(x, dim, index, source, reduce=reduce)


@rule("aten::index_reduce")
def index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Like scatter, with one index for each slice of the source."""
    if not x.shape:
        index, source = _as_vector(op.Reshape(index, [])), _as_vector(op.Reshape(source, []))
        result = _scatter_reduce(_as_vector(x), index, source, axis=0, reduce=reduce, include_self=include_self)
        return _as_scalar(result)
    axis = dim % len(x.shape)
    column = op.Reshape(index, integers(*[-1 if number == axis else 1 for number in range(len(x.shape))]))
    spread = op.Expand(op.Cast(column, to=ir.DataType.INT64), op.Shape(source))
    return _scatter_reduce(x, spread, source, axis=axis, reduce=reduce, include_self=include_self)


def _as_vector(x: Any) -> Any:
    return op.Reshape(x, integers(-1))


def _as_scalar(x: Any) -> Any:
    return op.Squeeze(x, integers(0))


def _cut(source: Any, index: Any) -> Any:
    """The part of the source that has indices."""
    rank = len(index.shape)
    if source.shape is not None and list(source.shape) == list(index.shape):
        return source
    return op.Slice(source, integers(*[0] * rank), op.Shape(index))


def _scatter_reduce(x: Any, index: Any, source: Any, *, axis: int, reduce: str, include_self: bool) -> Any:
    if x.dtype == ir.DataType.BOOL:
        x, source = (op.Cast(each, to=ir.DataType.INT32) for each in (x, source))
        result = _scatter_reduce(x, index, source, axis=axis, reduce=reduce, include_self=include_self)
        return op.Cast(result, to=ir.DataType.BOOL)
    start = x
    if not include_self:
        # Old values at the targets do not take part.
        blank = op.Expand(number(_neutral(reduce, x.dtype), x), op.Shape(index))
        start = op.ScatterElements(x, index, blank, axis=axis)
    result = op.ScatterElements(start, index, source, axis=axis, reduction=_REDUCTIONS[reduce])
    if reduce != "mean":
        return result
    zeros, ones = (op.ConstantOfShape(op.Shape(each), value=ir.tensor([0], dtype=x.dtype)) for each in (x, index))
    counts = op.ScatterElements(zeros, index, op.Add(ones, number(1, x)), axis=axis, reduction="add")
    counts = op.Add(counts, number(1, x)) if include_self else op.Max(counts, number(1, x))
    return floor_divide(result, counts) if x.dtype.is_integer() else op.Div(result, counts)


def _neutral(reduce: str, data_type: ir.DataType) -> float:
    """The neutral element of a reduction."""
    if reduce not in ("amax", "amin"):
        return int(reduce == "prod")
    if np.issubdtype(data_type.numpy(), np.floating):
        return -np.inf if reduce == "amax" else np.inf
    ends = np.iinfo(data_type.numpy())
    return int(ends.min if reduce == "amax" else ends.max)


@rule("aten::diagonal_scatter")
def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    shape = static_shape(x, "Writing a diagonal")
    return _written(x, source, np.arange(np.prod(shape)).reshape(shape).diagonal(offset, dim1, dim2))


@rule("aten::as_strided_scatter")
def strided_scatter(
    x: Any, source: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    places = np.full(size, storage_offset or 0)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        places = places + (np.arange(length) * step).reshape([-1 if axis == other else 1 for other in range(len(size))])
    return _written(x, source, places)


def _written(x: Any, source: Any, places: "np.ndarray[Any, np.dtype[Any]]") -> Any:
    """``x`` with the source's elements at these flat indices."""
    flat = op.Constant(value=ir.tensor(places.reshape(-1).astype(np.int64)))
    result = op.ScatterElements(_as_vector(x), flat, _as_vector(source), axis=0)
    return op.Reshape(result, op.Shape(x))


@rule("aten::put")
def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    reduction = "add" if accumulate else "none"
    result = op.ScatterElements(_as_vector(x), _as_vector(index), _as_vector(source), axis=0, reduction=reduction)
    return op.Reshape(result, op.Shape(x))


@rule("aten::nonzero")
def nonzero(x: Any) -> Any:
    if x.shape:
        return op.Transpose(op.NonZero(x), perm=[1, 0])
    # The only element of a scalar has no coordinates.
    is_set = op.Cast(op.Cast(x, to=ir.DataType.BOOL), to=ir.DataType.INT64)
    shape = op.Concat(_as_vector(is_set), integers(0), axis=0)
    return op.ConstantOfShape(shape, value=ir.tensor([0], dtype=ir.DataType.INT64))


@rule("aten::nonzero_static")
def nonzero_static(x: Any, *, size: Any, fill_value: int = -1) -> Any:
    rank = len(x.shape)
    wanted = op.Concat(_as_vector(integer(size) if isinstance(size, int) else size), integers(rank), axis=0)
    filling = op.ConstantOfShape(wanted, value=ir.tensor([fill_value], dtype=ir.DataType.INT64))
    return op.Slice(op.Concat(nonzero(x), filling, axis=0), integers(0, 0), wanted)
