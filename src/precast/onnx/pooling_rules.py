"""Pooling that torchlib lacks or gets wrong."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import nn as torchlib

from precast.onnx.opsets import integers, op
from precast.onnx.rules import rule
from precast.onnx.static_sizes import static_size


@rule(
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool3d",
)
def adaptive_average_pool(x: Any, output_size: Sequence[int]) -> Any:
    """One mean along all pooled dimensions where one element is left; else one matrix for each of them."""
    axes = list(range(-len(output_size), 0))
    if all(size == 1 for size in output_size):
        return op.ReduceMean(x, axes, keepdims=1)
    for axis, size in zip(axes, output_size, strict=True):
        x = _averaged(x, axis, size, static_size(x, axis, "Adaptive pooling to more than one element"))
    return x


def _averaged(x: Any, axis: int, size: int, total: int) -> Any:
    rank = len(x.shape)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    weights = np.zeros((total, size), dtype=np.float32)
    for window in range(size):
        start, stop = window * total // size, -(-(window + 1) * total // size)
        weights[start:stop, window] = 1 / (stop - start)
    matrix = op.CastLike(op.Constant(value=ir.tensor(weights)), x)
    last_first = x if order == sorted(order) else op.Transpose(x, perm=order)
    pooled = op.MatMul(last_first, matrix)
    result = pooled if order == sorted(order) else op.Transpose(pooled, perm=order)
    result.shape = ir.Shape([size if number == rank + axis else old for number, old in enumerate(x.shape)])
    return result


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
    # Every window is divided by the same number, which can be exchanged.
    batched = x if len(x.shape) == 4 else op.Unsqueeze(x, [0])
    mean = op.AveragePool(
        batched,
        kernel_shape=_pair(kernel_size),
        strides=_pair(stride or kernel_size),
        pads=_pair(padding) * 2,
        ceil_mode=int(ceil_mode),
        count_include_pad=1,
    )
    area = _pair(kernel_size)[0] * _pair(kernel_size)[1]
    scaled = op.Mul(mean, op.Constant(value=ir.tensor(area / divisor_override, dtype=x.dtype)))
    return scaled if len(x.shape) == 4 else op.Squeeze(scaled, [0])


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) * (2 // len(sizes))


@rule("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(x: Any, output_size: Sequence[int]) -> Any:
    """The largest element of each window, and its flat place in the pooled dimensions."""
    rank = len(output_size)
    outer = op.Shape(x, end=-rank)
    if all(size == 1 for size in output_size):
        windows = op.Reshape(x, op.Concat(outer, integers(*[1] * rank, -1), axis=0))
        places = None
    else:
        table = _windows([static_size(x, axis - rank, "Adaptive pooling") for axis in range(rank)], output_size)
        flat = op.Reshape(x, op.Concat(outer, integers(-1), axis=0))
        windows = op.Gather(flat, op.Constant(value=ir.tensor(table)), axis=-1)
        places = op.Expand(op.Constant(value=ir.tensor(table)), op.Shape(windows))
    best = op.ArgMax(windows, axis=-1, keepdims=1)
    indices = best if places is None else op.GatherElements(places, best, axis=-1)
    return op.ReduceMax(windows, integers(-1), keepdims=0), op.Squeeze(indices, integers(-1))


def _windows(sizes: Sequence[int], output_size: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Flat places of each window's elements; shorter windows have their last element again and again."""
    rank = len(sizes)
    places = np.zeros([1] * 2 * rank, dtype=np.int64)
    for axis, (total, count) in enumerate(zip(sizes, output_size, strict=True)):
        bounds = [(window * total // count, -(-(window + 1) * total // count)) for window in range(count)]
        longest = max(stop - start for start, stop in bounds)
        along = np.array([[min(start + step, stop - 1) for step in range(longest)] for start, stop in bounds])
        # Windows are the first axes, the elements in them the last ones.
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = count, longest
        places = places + along.reshape(shape) * int(np.prod(sizes[axis + 1 :]))
    return places.reshape([*output_size, -1])
