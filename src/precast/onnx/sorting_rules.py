"""Sorting, order statistics, and searching in what is sorted."""

from typing import Any

import onnx_ir as ir

from precast.onnx.opsets import op
from precast.onnx.rules import rule


@rule("aten::sort.stable")
def sort_stable(x: Any, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    # Among equal values TopK gives the lower index first, which is what stable means.
    if not x.shape:
        return op.Identity(x), op.Constant(value=ir.tensor(0, dtype=ir.DataType.INT64))
    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return op.TopK(x, count, axis=dim, largest=int(descending), sorted=1)


@rule("aten::kthvalue")
def kth_value(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.shape:
        return op.Identity(x), op.Constant(value=ir.tensor(0, dtype=ir.DataType.INT64))
    smallest, indices = op.TopK(x, op.Reshape(k, [-1]), axis=dim, largest=0, sorted=1)
    last = op.Constant(value_ints=[-1]) if keepdim else op.Constant(value=ir.tensor(-1, dtype=ir.DataType.INT64))
    return op.Gather(smallest, last, axis=dim), op.Gather(indices, last, axis=dim)


@rule("aten::median.dim")
def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle."""
    if not x.shape:
        return op.Identity(x), op.Constant(value=ir.tensor(0, dtype=ir.DataType.INT64))
    size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return kth_value(x, op.Div(op.Add(size, op.Constant(value_ints=[1])), op.Constant(value_ints=[2])), dim, keepdim)


@rule("aten::median")
def median(x: Any) -> Any:
    flat = op.Reshape(x, [-1])
    size = op.Shape(flat)
    middle = op.Div(op.Add(size, op.Constant(value_ints=[1])), op.Constant(value_ints=[2]))
    smallest, _ = op.TopK(flat, middle, axis=0, largest=0, sorted=1)
    return op.Gather(smallest, op.Constant(value=ir.tensor(-1, dtype=ir.DataType.INT64)))


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
