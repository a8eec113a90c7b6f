"""Elementwise operators, and distances, that torchlib lacks."""

from typing import Any

import numpy as np
import onnx_ir as ir

from precast.onnx.opsets import integers, number, op
from precast.onnx.rules import rule
from precast.onnx.static_sizes import static_size


@rule("aten::fmax")
def fmax(x: Any, y: Any) -> Any:
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, op.Max(x, y)))


@rule("aten::fmin")
def fmin(x: Any, y: Any) -> Any:
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, op.Min(x, y)))


@rule("aten::signbit")
def signbit(x: Any) -> Any:
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return op.Less(x, number(0, x)) if x.dtype != ir.DataType.BOOL else op.And(x, op.Not(x))
    zero = number(0.0, x)
    # Minus zero shows in its reciprocal.
    return op.Or(op.Less(x, zero), op.And(op.Equal(x, zero), op.Less(op.Reciprocal(x), zero)))


@rule("aten::copysign.Tensor")
def copysign(x: Any, sign: Any) -> Any:
    size = op.Abs(x)
    return op.Where(signbit(sign), op.Neg(size), size)


@rule("aten::copysign.Scalar")
def copysignnumber(x: Any, sign: float) -> Any:
    return copysign(x, number(float(sign), x))


@rule("aten::hypot")
def hypot(x: Any, y: Any) -> Any:
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


@rule("aten::pow.Scalar")
def power_of_number(base: float, exponent: Any) -> Any:
    # onnxruntime forgets the dimensions of an exponent of one element, if the base has none.
    full = np.full([1] * len(exponent.shape), base, dtype=exponent.dtype.numpy())
    return op.Pow(op.Constant(value=ir.tensor(full)), exponent)


@rule("aten::_cdist_forward")
def pairwise_distance(x: Any, y: Any, p: float, compute_mode: int | None = None) -> Any:
    rank = len(x.shape)
    return _norm(op.Sub(op.Unsqueeze(x, [rank - 1]), op.Unsqueeze(y, [len(y.shape) - 2])), p)


@rule("aten::_pdist_forward")
def own_distances(x: Any, p: float = 2.0) -> Any:
    """Between each row and every later one."""
    count = static_size(x, 0, "Distances between rows")
    if count == 1:
        return op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=x.dtype))
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = (
        op.Constant(value=ir.tensor([pair[side] for pair in pairs], dtype=ir.DataType.INT64)) for side in (0, 1)
    )
    return _norm(op.Sub(op.Gather(x, first), op.Gather(x, second)), p)


def _norm(difference: Any, p: float) -> Any:
    size = op.Abs(difference)
    if p == 0:
        return op.ReduceSum(op.CastLike(op.Greater(size, op.CastLike(0.0, size)), size), [-1], keepdims=0)
    if p == 1:
        return op.ReduceSum(size, [-1], keepdims=0)
    if p == 2:
        return op.Sqrt(op.ReduceSumSquare(difference, [-1], keepdims=0))
    if p == float("inf"):
        return op.ReduceMax(size, [-1], keepdims=0)
    power = op.CastLike(float(p), size)
    return op.Pow(op.ReduceSum(op.Pow(size, power), [-1], keepdims=0), op.Reciprocal(power))
