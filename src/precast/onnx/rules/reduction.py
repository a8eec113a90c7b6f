"""Reductions and pooling.

Variance and its relatives in the form that fusion of layer normalization recognizes; norms.

Pooling that torchlib lacks or gets wrong.
"""

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import linalg
from onnxscript.function_libs.torch_lib.ops import nn as torchlib

from precast.onnx.rules.opsets import integer, integers, op, op23
from precast.onnx.rules.ordering import extreme, place_of_extreme
from precast.onnx.rules.registry import rule, static_size


def _variance(x: Any, dim: Sequence[int] | int | None, correction: float, keepdim: bool) -> tuple[Any, Any]:
    """The variance and the mean."""
    dims = [dim] if isinstance(dim, int) else list(dim or [])
    rank = len(x.shape)
    axes = [axis if axis < 0 else axis - rank for axis in (dims or range(rank) if rank else ())]
    mean = op.ReduceMean(x, axes, keepdims=1) if axes else op.Identity(x)
    deviation = op.Sub(x, mean)
    square = op.Mul(deviation, deviation)
    variance = op.ReduceMean(square, axes, keepdims=int(keepdim)) if axes else square
    if correction:
        variance = op.Mul(variance, _correcting(x, axes, correction))
    return variance, mean if keepdim or not axes else op.Squeeze(mean, axes)


def _correcting(x: Any, axes: Sequence[int], correction: float) -> Any:
    """The factor that turns a mean of squares into a sum divided by the corrected count."""
    sizes = [x.shape[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        count = prod(sizes)
        divisor = max(0.0, count - correction)
        factor = count / divisor if divisor else float("inf") if count else float("nan")
        return op.Constant(value=ir.tensor(factor, dtype=x.dtype))
    counted = op.ReduceProd(op.Gather(op.Shape(x), list(axes)), keepdims=0)
    number = op.Cast(counted, to=x.dtype)
    least = op.Constant(value=ir.tensor(0.0, dtype=x.dtype))
    return op.Div(number, op.Max(op.Sub(number, op.Constant(value=ir.tensor(correction, dtype=x.dtype))), least))


@rule("aten::var.correction")
def var(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return _variance(x, dim, 1.0 if correction is None else float(correction), keepdim)[0]


@rule("aten::var")
def var_of_all(x: Any, unbiased: bool = True) -> Any:
    return var(x, correction=unbiased)


@rule("aten::var.dim")
def var_dim(x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return var(x, dim, unbiased, keepdim)


@rule("aten::var_mean.correction")
def var_mean(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return _variance(x, dim, 1.0 if correction is None else float(correction), keepdim)


@rule("aten::var_mean")
def var_mean_of_all(x: Any, unbiased: bool = True) -> Any:
    return var_mean(x, correction=unbiased)


@rule("aten::std")
def std_of_all(x: Any, unbiased: bool = True) -> Any:
    return std(x, correction=unbiased)


@rule("aten::std_mean.correction")
def std_mean(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    variance, mean = var_mean(x, dim, correction, keepdim)
    return op.Sqrt(variance), mean


@rule("aten::std_mean")
def std_mean_of_all(x: Any, unbiased: bool = True) -> Any:
    return std_mean(x, correction=unbiased)


@rule("aten::std.correction")
def std(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return op.Sqrt(var(x, dim, correction, keepdim))


@rule("aten::linalg_vector_norm")
def vector_norm(x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: int = -1) -> Any:
    """Torchlib's rule, plus the dimensions it drops: of scalars, and where all are reduced but kept."""
    rank = len(x.shape)
    if rank and abs(ord) == inf:
        reduce = op.ReduceMax if ord > 0 else op.ReduceMin
        size = op.Abs(x if dtype in (-1, None) else op.Cast(x, to=dtype))
        return extreme(size, reduce, [dim] if isinstance(dim, int) else dim or (), keepdim)
    if rank and dim is not None:
        return linalg.aten_linalg_vector_norm(x, ord, dim, keepdim, dtype)
    norm = linalg.aten_linalg_vector_norm(op.Reshape(x, integers(-1)), ord, [0], False, dtype)
    return op.Reshape(norm, integers(*[1] * rank)) if keepdim and rank else norm


@rule(
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool3d",
)
def adaptive_average_pool(x: Any, output_size: Sequence[int]) -> Any:
    """One mean over all pooled dimensions if one element remains; otherwise one matrix for each dimension."""
    axes = list(range(-len(output_size), 0))
    if all(size == 1 for size in output_size):
        return op.ReduceMean(x, axes, keepdims=1)
    for axis, size in zip(axes, output_size, strict=True):
        x = _averaged(x, axis, size)
    return x


def _averaged(x: Any, axis: int, size: Any) -> Any:
    rank = len(x.shape)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    is_static = isinstance(size, int) and isinstance(x.shape[axis], int)
    matrix = _mean_weights(x.shape[axis], size) if is_static else _dynamic_mean_weights(x, axis, size)
    matrix = op.CastLike(matrix, x)
    last_first = x if order == sorted(order) else op.Transpose(x, perm=order)
    pooled = op.MatMul(last_first, matrix)
    result = pooled if order == sorted(order) else op.Transpose(pooled, perm=order)
    new = size if isinstance(size, int) else None
    result.shape = ir.Shape([new if number == rank + axis else old for number, old in enumerate(x.shape)])
    return result


def _mean_weights(total: int, size: int) -> Any:
    weights = np.zeros((total, size))
    for window in range(size):
        start, stop = window * total // size, -(-(window + 1) * total // size)
        weights[start:stop, window] = 1 / (stop - start)
    return op.Constant(value=ir.tensor(weights))


def _dynamic_mean_weights(x: Any, axis: int, size: Any) -> Any:
    """The same from sizes known at run time."""
    zero, one = integer(0), integer(1)
    size = integer(size) if isinstance(size, int) else size
    total = op.Gather(op.Shape(x), integer(axis))
    starts, stops = _bounds(op.Range(zero, size, one), total, size)
    places = op.Unsqueeze(op.Range(zero, total, one), integers(1))
    is_inside = op.And(op.GreaterOrEqual(places, starts), op.Less(places, stops))
    return op.Div(*(op.Cast(each, to=ir.DataType.DOUBLE) for each in (is_inside, op.Sub(stops, starts))))


def _bounds(window: Any, total: Any, size: Any) -> tuple[Any, Any]:
    """Where a window of adaptive pooling starts and stops."""
    following = op.Mul(op.Add(window, integer(1)), total)
    return op.Div(op.Mul(window, total), size), op.Div(op.Add(following, op.Sub(size, integer(1))), size)


@rule("aten::avg_pool2d")
def average_pool_2d(
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    if divisor_override is None:
        return torchlib.aten_avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)
    sizes, strides, pads = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
    batched = x if len(x.shape) == 4 else op.Unsqueeze(x, [0])
    mean = op.AveragePool(
        batched, kernel_shape=sizes, strides=strides, pads=pads * 2, ceil_mode=int(ceil_mode), count_include_pad=1
    )
    # What a mean was divided by is known, and can be exchanged.
    if ceil_mode:
        rows, columns = (
            _counted(static_size(x, axis - 2, "Average pooling with a divisor, rounded up"), *each)
            for axis, each in enumerate(zip(sizes, strides, pads, strict=True))
        )
        area = rows[:, None] * columns
    else:
        area = np.array(float(sizes[0] * sizes[1]))
    scaled = op.Mul(mean, op.Constant(value=ir.tensor((area / divisor_override).astype(x.dtype.numpy()))))
    return scaled if len(x.shape) == 4 else op.Squeeze(scaled, [0])


def _counted(size: int, kernel: int, stride: int, pad: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """How many elements each window holds, those of the padding too; the last one may reach beyond."""
    windows = -(-(size + 2 * pad - kernel) // stride) + 1
    if (windows - 1) * stride >= size + pad:
        windows -= 1
    starts = np.arange(windows) * stride - pad
    return (np.minimum(starts + kernel, size + pad) - starts).astype(np.float64)


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) * (2 // len(sizes))


@rule("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(x: Any, output_size: Sequence[int]) -> Any:
    """The maximum of each window, and its flat index in the pooled dimensions."""
    rank = len(output_size)
    outer = op.Shape(x, end=-rank)
    is_whole = all(size == 1 for size in output_size)
    if not is_whole and not all(isinstance(size, int) for size in x.shape[-rank:]):
        return _dynamic_adaptive_maxima(x, output_size), None
    if is_whole:
        windows = op.Reshape(x, op.Concat(outer, integers(*[1] * rank, -1), axis=0))
        places = None
    else:
        table = _windows([static_size(x, axis - rank, "Adaptive pooling") for axis in range(rank)], output_size)
        flat = op.Reshape(x, op.Concat(outer, integers(-1), axis=0))
        windows = op.Gather(flat, op.Constant(value=ir.tensor(table)), axis=-1)
        places = op.Expand(op.Constant(value=ir.tensor(table)), op.Shape(windows))
    best = place_of_extreme(windows, op.ArgMax, -1, keepdim=True)
    indices = best if places is None else op.GatherElements(places, best, axis=-1)
    return extreme(windows, op.ReduceMax, [-1]), op.Squeeze(indices, integers(-1))


def _dynamic_adaptive_maxima(x: Any, output_size: Sequence[int]) -> Any:
    """One dimension after the other, window by window; without indices."""
    for axis, count in zip(range(-len(output_size), 0), output_size, strict=True):
        total = op.Gather(op.Shape(x), integers(axis))
        bounds = [_bounds(integer(window), total, integer(count)) for window in range(count)]
        found = [extreme(op.Slice(x, *each, integers(axis)), op.ReduceMax, [axis], keepdim=True) for each in bounds]
        x = found[0] if count == 1 else op.Concat(*found, axis=axis)
    return x


def _windows(sizes: Sequence[int], output_size: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Flat indices of each window's elements; shorter windows repeat their last element."""
    rank = len(sizes)
    places = np.zeros([1] * 2 * rank, dtype=np.int64)
    for axis, (total, count) in enumerate(zip(sizes, output_size, strict=True)):
        bounds = [(window * total // count, -(-(window + 1) * total // count)) for window in range(count)]
        longest = max(stop - start for start, stop in bounds)
        along = np.array([[min(start + step, stop - 1) for step in range(longest)] for start, stop in bounds])
        # Windows are the first axes, their elements the last ones.
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = count, longest
        places = places + along.reshape(shape) * int(np.prod(sizes[axis + 1 :]))
    return places.reshape([*output_size, -1])


@rule("aten::rms_norm", since=23)
def rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """Older opsets decompose it; sums are in float32 at least, whose precision is the default of ``eps``."""
    if weight is None:
        weight = op.ConstantOfShape(integers(*normalized_shape), value=ir.tensor([1.0], dtype=x.dtype))
    precise = np.float64 if x.dtype == ir.DataType.DOUBLE else np.float32
    epsilon = float(np.finfo(precise).eps) if eps is None else eps
    stash = ir.DataType.DOUBLE if precise is np.float64 else ir.DataType.FLOAT
    return op23.RMSNormalization(x, weight, axis=-len(normalized_shape), epsilon=epsilon, stash_type=int(stash))
