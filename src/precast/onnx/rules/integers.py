"""Operators on integers and bools that ONNX has for floats only, or that onnxruntime has no kernels for.

Before: ``ceil(i64[3])``         ``addmm(i64[2], i64[2, 3], i64[3, 2])``
After:  ``Identity(i64[3])``     ``Add(i64[2], MatMul(i64[2, 3], i64[3, 2]))``

Floats use torchlib's rules.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core, nn

from precast.onnx.rules.loops import scan
from precast.onnx.rules.opsets import integers, number, op
from precast.onnx.rules.registry import rule

_LONGEST_DIVISION = 92
"""The steps of Euclid's algorithm on neighbouring Fibonacci numbers, the slowest pair in 64 bits."""


def is_float(x: Any) -> bool:
    """Whether a value holds floats of any width."""
    return bool(x.dtype.is_floating_point())


def _cast(x: Any, data_type: int) -> Any:
    """Convert a value to another type, keeping its shape, which rules read."""
    cast = op.Cast(x, to=data_type)
    cast.shape = x.shape
    return cast


@rule("aten::ceil")
def ceil(x: Any) -> Any:
    return op.Ceil(x) if is_float(x) else op.Identity(x)


@rule("aten::floor")
def floor(x: Any) -> Any:
    return op.Floor(x) if is_float(x) else op.Identity(x)


@rule("aten::round")
def nearest(x: Any) -> Any:
    return op.Round(x) if is_float(x) else op.Identity(x)


@rule("aten::trunc", "aten::fix")
def trunc(x: Any) -> Any:
    return core.aten_trunc(x) if is_float(x) else op.Identity(x)


@rule("aten::isnan")
def is_nan(x: Any) -> Any:
    return op.IsNaN(x) if is_float(x) else op.Not(op.Equal(x, x))


@rule("aten::isinf")
def is_infinite(x: Any) -> Any:
    return op.IsInf(x) if is_float(x) else op.Not(op.Equal(x, x))


@rule("aten::isfinite")
def is_finite(x: Any) -> Any:
    return core.aten_isfinite(x) if is_float(x) else op.Equal(x, x)


@rule("aten::logsumexp")
def log_sum_exp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return core.aten_logsumexp(x if is_float(x) else _cast(x, ir.DataType.FLOAT), dim, keepdim)


@rule("aten::relu")
def relu(x: Any) -> Any:
    if is_float(x):
        return op.Relu(x)
    zero = number(0, x)
    return op.Where(op.Greater(x, zero), x, zero)


@rule("aten::addmm")
def add_product(x: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    # Gemm's factors are in single precision, and it reads what is multiplied by zero.
    is_plain = (beta == 1 and alpha == 1) or (x.dtype != ir.DataType.DOUBLE and beta != 0)
    if is_float(x) and is_plain and not isinstance(beta, ir.Value) and not isinstance(alpha, ir.Value):
        return core.aten_addmm(x, left, right, beta=beta, alpha=alpha)
    return _added(x, op.MatMul(left, right), beta, alpha)


@rule("aten::addmv", "aten::baddbmm")
def add_one_product(x: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(x, op.MatMul(left, right), beta, alpha)


@rule("aten::addbmm")
def add_sum_of_products(x: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(x, op.ReduceSum(op.MatMul(left, right), integers(0), keepdims=0), beta, alpha)


@rule("aten::addr")
def add_outer_product(x: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(x, op.Mul(op.Unsqueeze(left, integers(1)), op.Unsqueeze(right, integers(0))), beta, alpha)


def _added(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """``beta * x + alpha * product``; what is multiplied by zero is not read, as it may be NaN."""
    scaled = product if _is_one(alpha) else op.Mul(product, op.CastLike(alpha, product))
    if not isinstance(beta, ir.Value) and beta == 0:
        return scaled
    return op.Add(x if _is_one(beta) else op.Mul(x, op.CastLike(beta, x)), scaled)


def _is_one(factor: Any) -> bool:
    return not isinstance(factor, ir.Value) and bool(factor == 1)


@rule("aten::linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if is_float(x):
        return nn.aten_linear(x, weight, bias)
    product = op.MatMul(x, op.Transpose(weight, perm=[1, 0]) if len(weight.shape) == 2 else weight)
    return product if bias is None else op.Add(product, bias)


@rule("aten::softmax.int")
def softmax(x: Any, dim: int, dtype: int = -1) -> Any:
    """If a dtype is requested, it is computed in that."""
    x = x if dtype in (-1, None) else _cast(x, dtype)
    return op.Softmax(x, axis=dim) if len(x.shape) else op.Add(op.Sub(x, x), number(1.0, x))


@rule("aten::log_softmax.int")
def log_softmax(x: Any, dim: int, dtype: int = -1) -> Any:
    x = x if dtype in (-1, None) else _cast(x, dtype)
    return op.LogSoftmax(x, axis=dim) if len(x.shape) else op.Sub(x, x)


@rule("prims::gcd", "aten::gcd")
def greatest_common_divisor(x: Any, y: Any) -> Any:
    """Euclid's algorithm, with as many steps as any two 64-bit integers need."""
    wide_x, wide_y = (op.Abs(op.Cast(value, to=ir.DataType.INT64)) for value in (x, y))
    shape = op.Shape(op.Add(wide_x, wide_y))
    steps = op.ConstantOfShape(integers(_LONGEST_DIVISION), value=ir.tensor([0], dtype=ir.DataType.INT64))

    def step(larger: Any, smaller: Any, _: Any) -> tuple[list[Any], list[Any]]:
        zero = number(0, smaller)
        is_done = op.Equal(smaller, zero)
        rest = op.Mod(larger, op.Where(is_done, number(1, smaller), smaller))
        return [op.Where(is_done, larger, smaller), op.Where(is_done, zero, rest)], []

    start = [op.Expand(value, shape) for value in (wide_x, wide_y)]
    found, _ = scan(step, start, [(steps, 0)], output_axis=0)
    return op.Cast(found, to=x.dtype)


@rule("aten::where.self", "aten::where.Scalar", "aten::where.ScalarOther", "aten::where.ScalarSelf")
def select(condition: Any, x: Any, y: Any) -> Any:
    """Onnxruntime has no kernel that selects between bools."""
    if getattr(x, "dtype", None) == ir.DataType.BOOL and getattr(y, "dtype", None) == ir.DataType.BOOL:
        return op.Or(op.And(condition, x), op.And(op.Not(condition), y))
    return op.Where(condition, x, y)


@rule("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    filling = op.CastLike(value, x) if isinstance(value, ir.Value) else number(value, x)
    if x.dtype == ir.DataType.BOOL:
        filling = op.Cast(value, to=ir.DataType.BOOL) if isinstance(value, ir.Value) else number(bool(value), x)
    return select(mask, filling, x)
