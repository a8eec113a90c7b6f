"""Bags of embeddings: rows of a table are looked up and added, averaged or maximized bag by bag.

Torchlib goes through the bags in a loop of nested branches, which crashes onnxruntime. Here each row is scattered into
its bag.
"""

import math
from typing import Any

import onnx_ir as ir

from precast.onnx.opsets import integer, integers, number, op
from precast.onnx.rules import rule

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
    """The bags; what torch gives beside them serves the backward alone."""
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
    """The number of the bag that each index lies in: how many bags have started by then, less one."""
    # A bag that starts behind the last index is empty: it needs a place to be counted in.
    places = op.Add(op.Shape(indices), integers(1))
    zeros = op.ConstantOfShape(places, value=ir.tensor([0], dtype=ir.DataType.INT64))
    ones = op.ConstantOfShape(op.Shape(starts), value=ir.tensor([1], dtype=ir.DataType.INT64))
    begun = op.ScatterElements(zeros, op.Cast(starts, to=ir.DataType.INT64), ones, axis=0, reduction="add")
    axis = integer(0)
    started = op.Slice(op.CumSum(begun, axis), [0], [-1], [0])
    return op.Unsqueeze(op.Sub(started, integers(1)), [1])


def _scattered(rows: Any, bags: Any, starts: Any, start: float, reduction: str) -> Any:
    """One row for each bag, that all its rows were reduced into."""
    shape = op.Concat(op.Shape(starts), op.Shape(rows, start=1), axis=0)
    empty = op.ConstantOfShape(shape, value=ir.tensor([start], dtype=rows.dtype))
    return op.ScatterND(empty, bags, rows, reduction=reduction)


def _kept(rows: Any, counted: Any, otherwise: float) -> Any:
    """The rows, but for padding."""
    return rows if counted is None else op.Where(op.Unsqueeze(counted, [1]), rows, number(otherwise, rows))


def _largest(rows: Any, bags: Any, starts: Any, counted: Any) -> Any:
    """Maxima; those of empty bags are zero."""
    largest = _scattered(_kept(rows, counted, -math.inf), bags, starts, -math.inf, "max")
    is_empty = op.Equal(largest, number(-math.inf, rows))
    return op.Where(is_empty, number(0.0, rows), largest)
