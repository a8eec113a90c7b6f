"""Variance and its kin in the form that layer normalization is recognized by; norms."""

from collections.abc import Sequence
from math import prod
from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import linalg

from precast.onnx.opsets import integers, op
from precast.onnx.rules import rule


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
    """What turns a mean of squares into a sum divided by less than their number."""
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
    """Torchlib's, of a tensor with the dimensions that it loses: of scalars, and where all are reduced but kept."""
    rank = len(x.shape)
    if rank and dim is not None:
        return linalg.aten_linalg_vector_norm(x, ord, dim, keepdim, dtype)
    norm = linalg.aten_linalg_vector_norm(op.Reshape(x, integers(-1)), ord, [0], False, dtype)
    return op.Reshape(norm, integers(*[1] * rank)) if keepdim and rank else norm
