"""Reductions over segments of a dimension, and pooling over windows that random numbers place.

Before: ``segment_reduce(x: f32[7, 4], "sum", lengths=[2, 3, 2])``
After:  ``ReduceSum(Where(inside: b[3, 7, 1], Unsqueeze(x, [0]), 0.0), [1])``
"""

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.ordering import extreme, maximum_along
from precast.onnx.rules.registry import rule, static_size

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


@rule("aten::segment_reduce")
def segment_reduce(
    x: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """Segments are next to each other, and of any length; an empty one is what the reduction begins with."""
    starts, ends = _bounds(lengths, offsets)
    places = op.Range(integer(0), op.Squeeze(op.Shape(x, start=axis, end=axis + 1)), integer(1))
    is_behind = op.LessOrEqual(op.Unsqueeze(starts, integers(-1)), places)
    inside = op.And(is_behind, op.Less(places, op.Unsqueeze(ends, integers(-1))))
    behind = len(x.shape) - axis - 1
    count = op.Sub(ends, starts)
    if behind:
        inside = op.Unsqueeze(inside, integers(*range(-behind, 0)))
        count = op.Unsqueeze(count, integers(*range(-behind, 0)))
    kept = op.Where(inside, op.Unsqueeze(x, integers(axis)), number(_NEUTRAL[reduce], x))
    if reduce in ("max", "min"):
        result = extreme(kept, op.ReduceMax if reduce == "max" else op.ReduceMin, [axis + 1], False)
        return result if initial is None else (op.Max if reduce == "max" else op.Min)(result, number(initial, x))
    if reduce == "prod":
        result = op.ReduceProd(kept, integers(axis + 1), keepdims=0)
        return result if initial is None else op.Mul(result, number(initial, x))
    result = op.ReduceSum(kept, integers(axis + 1), keepdims=0)
    result = result if initial is None else op.Add(result, number(initial, x))
    if reduce == "sum":
        return result
    mean = op.Div(result, op.CastLike(count, x))
    return mean if initial is None else op.Where(op.Equal(count, integer(0)), result, mean)


def _bounds(lengths: Any, offsets: Any) -> tuple[Any, Any]:
    if offsets is None:
        lengths = op.Cast(lengths, to=ir.DataType.INT64)
        ends = op.CumSum(lengths, integer(-1))
        return op.Sub(ends, lengths), ends
    offsets = op.Cast(offsets, to=ir.DataType.INT64)
    first = op.Slice(offsets, integers(0), integers(-1), integers(-1))
    return first, op.Slice(offsets, integers(1), integers(2**62), integers(-1))


@rule("aten::fractional_max_pool2d")
def fractional_max_pool_2d(x: Any, kernel_size: Sequence[int], output_size: Sequence[int], samples: Any) -> Any:
    # The first random number is for the width.
    return _fractional(x, kernel_size, output_size, samples, (1, 0))


@rule("aten::fractional_max_pool3d")
def fractional_max_pool_3d(x: Any, kernel_size: Sequence[int], output_size: Sequence[int], samples: Any) -> Any:
    return _fractional(x, kernel_size, output_size, samples, (0, 1, 2))


def _fractional(
    x: Any, kernel_size: Sequence[int], output_size: Sequence[int], samples: Any, order: Sequence[int]
) -> Any:
    """The largest of each window, and its place in the image."""
    rank = len(order)
    has_batch = len(x.shape) == rank + 2
    sizes = [static_size(x, axis, "fractional max pooling") for axis in range(-rank, 0)]
    places = integer(0)
    for number_of, (size, window, count) in enumerate(zip(sizes, kernel_size, output_size, strict=True)):
        sample = op.Gather(samples, integers(order[number_of]), axis=-1)
        along = op.Add(op.Unsqueeze(_starts(sample, size, window, count), integers(-1)), integers(*range(window)))
        others = [axis for axis in range(2, 2 + 2 * rank) if axis not in (2 + number_of, 2 + rank + number_of)]
        places = op.Add(op.Mul(places, integer(size)), op.Unsqueeze(along, integers(*others)))
    planes = x if has_batch else op.Unsqueeze(x, integers(0))
    lead = op.Shape(planes, end=2)
    planes = op.Reshape(planes, op.Concat(lead, integers(-1), axis=0))
    found = op.GatherElements(planes, op.Reshape(places, op.Concat(lead, integers(-1), axis=0)), axis=-1)
    windows = op.Concat(lead, integers(*output_size, math.prod(kernel_size)), axis=0)
    found = op.Reshape(found, windows)
    found.shape = ir.Shape([None] * (2 + rank) + [math.prod(kernel_size)])
    largest, which = maximum_along(found, rank + 2, True)
    results = [largest, op.GatherElements(op.Reshape(places, windows), which, axis=-1)]
    return tuple(op.Squeeze(each, integers(-1) if has_batch else integers(0, -1)) for each in results)


def _starts(sample: Any, size: int, window: int, count: int) -> Any:
    """Where windows begin: the last one at the end, the others at multiples of a fraction, shifted at random."""
    last = op.Add(op.Mul(op.Cast(sample, to=ir.DataType.INT64), integer(0)), integer(size - window))
    if count == 1:
        return last
    step = number((size - window) / (count - 1), sample)
    numbers = op.CastLike(integers(*range(count - 1)), sample)
    moved = op.Sub(op.Floor(op.Mul(op.Add(numbers, sample), step)), op.Floor(op.Mul(sample, step)))
    return op.Concat(op.Cast(moved, to=ir.DataType.INT64), last, axis=-1)
