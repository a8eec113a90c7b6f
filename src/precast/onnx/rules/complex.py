"""Operators on complex numbers that torchlib lacks or gets wrong; complex numbers are pairs along a last dimension.

Before: ``irfft(c64[4, 5]) -> f32[4, 8]``
After:  ``f32[4, 5, 2]``, completed to ``f32[4, 8, 2]`` by conjugates, and transformed; the real parts are the result
"""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.pointwise import angle_of_point, hypot
from precast.onnx.rules.reduction import vector_norm
from precast.onnx.rules.registry import pair, parts, rule

_ALL = 2**62
"""Past the last element, whatever the size."""


@rule("aten::_conj_physical", is_complex=True)
def conjugate(x: Any) -> Any:
    real, imaginary = parts(x)
    return pair(real, op.Neg(imaginary))


@rule("aten::exp", is_complex=True)
def exp(x: Any) -> Any:
    real, imaginary = parts(x)
    size = op.Exp(real)
    return pair(op.Mul(size, op.Cos(imaginary)), op.Mul(size, op.Sin(imaginary)))


@rule("aten::log", is_complex=True)
def log(x: Any) -> Any:
    return pair(op.Log(size_of(x)), angle_of_point(*reversed(parts(x))))


@rule("aten::sqrt", is_complex=True)
def square_root(x: Any) -> Any:
    """Half the angle, of the root of the size."""
    root, half = op.Sqrt(size_of(x)), op.Mul(angle_of_point(*reversed(parts(x))), number(0.5, x))
    return pair(op.Mul(root, op.Cos(half)), op.Mul(root, op.Sin(half)))


@rule("aten::sin", is_complex=True)
def sin(x: Any) -> Any:
    real, imaginary = parts(x)
    sinh, cosh = _hyperbolic(imaginary)
    return pair(op.Mul(op.Sin(real), cosh), op.Mul(op.Cos(real), sinh))


@rule("aten::cos", is_complex=True)
def cos(x: Any) -> Any:
    real, imaginary = parts(x)
    sinh, cosh = _hyperbolic(imaginary)
    return pair(op.Mul(op.Cos(real), cosh), op.Neg(op.Mul(op.Sin(real), sinh)))


def _hyperbolic(x: Any) -> tuple[Any, Any]:
    """The hyperbolic sine and cosine; onnxruntime has no kernels for theirs in double precision."""
    growing, falling, half = op.Exp(x), op.Exp(op.Neg(x)), number(0.5, x)
    return op.Mul(op.Sub(growing, falling), half), op.Mul(op.Add(growing, falling), half)


@rule("aten::pow.Tensor_Scalar", is_complex=True)
def power(x: Any, exponent: Any) -> Any:
    if exponent == 2:
        real, imaginary = parts(x)
        product = op.Mul(real, imaginary)
        return pair(op.Sub(op.Mul(real, real), op.Mul(imaginary, imaginary)), op.Add(product, product))
    exponent = complex(exponent)
    logarithm, angle = parts(log(x))
    real, imaginary = number(exponent.real, x), number(exponent.imag, x)
    size = op.Exp(op.Sub(op.Mul(logarithm, real), op.Mul(angle, imaginary)))
    turned = op.Add(op.Mul(angle, real), op.Mul(logarithm, imaginary))
    return pair(op.Mul(size, op.Cos(turned)), op.Mul(size, op.Sin(turned)))


@rule("aten::sigmoid", is_complex=True)
def sigmoid(x: Any) -> Any:
    """One divided by one more than the exponential of the opposite."""
    real, imaginary = parts(exp(op.Neg(x)))
    real = op.Add(real, number(1.0, x))
    square = op.Add(op.Mul(real, real), op.Mul(imaginary, imaginary))
    return pair(op.Div(real, square), op.Div(op.Neg(imaginary), square))


@rule("aten::tanh", is_complex=True)
def tanh(x: Any) -> Any:
    return op.Sub(
        op.Mul(number(2.0, x), sigmoid(op.Mul(number(2.0, x), x))),
        op.Constant(value=ir.tensor([1.0, 0.0], dtype=x.dtype)),
    )


@rule("aten::mm", "aten::bmm", "aten::mv", is_complex=True)
def product(x: Any, y: Any) -> Any:
    return _product(parts(x), parts(y))


@rule("aten::linear", is_complex=True)
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    result = _product(parts(x), [op.Transpose(part, perm=[1, 0]) for part in parts(weight)])
    return result if bias is None else op.Add(result, bias)


def _product(x: Sequence[Any], y: Sequence[Any]) -> Any:
    (a, b), (c, d) = x, y
    return pair(op.Sub(op.MatMul(a, c), op.MatMul(b, d)), op.Add(op.MatMul(a, d), op.MatMul(b, c)))


@rule("aten::full_like", is_complex=True)
def full_like(x: Any, fill_value: Any, **_: Any) -> Any:
    filling = complex(fill_value)
    pairs = op.Constant(value=ir.tensor([filling.real, filling.imag], dtype=x.dtype))
    return op.Expand(pairs, op.Shape(x))


@rule("aten::eq.Tensor", "aten::eq.Scalar", is_complex=True)
def equal(x: Any, y: Any) -> Any:
    return _of_both(op.And, op.Equal(x, y))


@rule("aten::ne.Tensor", "aten::ne.Scalar", is_complex=True)
def not_equal(x: Any, y: Any) -> Any:
    return op.Not(equal(x, y))


@rule("aten::isnan", is_complex=True)
def is_nan(x: Any) -> Any:
    return _of_both(op.Or, op.IsNaN(x))


@rule("aten::isinf", is_complex=True)
def is_infinite(x: Any) -> Any:
    return _of_both(op.Or, op.IsInf(x))


def _of_both(combine: Any, answers: Any) -> Any:
    return combine(op.Gather(answers, integer(0), axis=-1), op.Gather(answers, integer(1), axis=-1))


@rule("aten::linalg_vector_norm", is_complex=True)
def norm(x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: int = -1) -> Any:
    size = size_of(x)
    size.shape = ir.Shape(list(x.shape)[:-1])
    return vector_norm(size, ord, dim, keepdim, dtype=dtype)


@rule("aten::abs", is_complex=True)
def size_of(x: Any) -> Any:
    """The absolute value, relative to the larger part, whose square may overflow."""
    size = hypot(*parts(x))
    size.dtype = x.dtype
    return size


@rule("aten::_neg_view", "aten::_neg_view_copy")
def negative(x: Any) -> Any:
    return op.Neg(x)


@rule("aten::einsum", is_complex=True)
def einsum(equation: str, operands: Sequence[Any], **_: Any) -> Any:
    """Contract one operand after the other: each product is four products of the parts."""
    if len(operands) == 1:
        real, imaginary = parts(operands[0])
        return pair(op.Einsum(real, equation=equation), op.Einsum(imaginary, equation=equation))
    assert len(operands) == 2, "torch contracts complex tensors two by two"
    (a, b), (c, d) = map(parts, operands)
    real = op.Sub(op.Einsum(a, c, equation=equation), op.Einsum(b, d, equation=equation))
    imaginary = op.Add(op.Einsum(a, d, equation=equation), op.Einsum(b, c, equation=equation))
    return pair(real, imaginary)


@rule("aten::constant_pad_nd", is_complex=True)
def pad_constant(x: Any, pads: Sequence[int], value: float = 0) -> Any:
    return pad(x, pads, "constant", value)


@rule("aten::pad", is_complex=True)
def pad(x: Any, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    axes, ends = integers(*range(-1, -1 - len(pads) // 2, -1)), integers(*pads[::2], *pads[1::2])
    real, imaginary = parts(x)
    kind = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    filling = number(float(value or 0), x)
    return pair(op.Pad(real, ends, filling, axes, mode=kind), op.Pad(imaginary, ends, None, axes, mode=kind))


@rule("aten::_fft_c2r", is_complex=True)
def complex_to_real(x: Any, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    rank = len(x.shape) - 1
    axes = [axis % rank + 1 for axis in dim]
    # DFT requires a batch dimension.
    signal = op.Unsqueeze(x, integers(0))
    for axis in axes[:-1]:
        signal = _inverse(signal, axis, normalization)
    whole = _completed(signal, axes[-1], last_dim_size)
    result = _inverse(whole, axes[-1], normalization)
    return op.Squeeze(parts(result)[0], integers(0))


def _inverse(signal: Any, axis: int, normalization: int) -> Any:
    """One inverse transform, which ONNX always divides by the length, but torch only on request."""
    result = op.DFT(signal, axis=axis, inverse=1)
    if normalization == 2:
        return result
    length = op.CastLike(op.Squeeze(op.Shape(signal, start=axis, end=axis + 1)), result)
    return op.Mul(result, op.Sqrt(length) if normalization == 1 else length)


def _completed(half: Any, axis: int, length: Any) -> Any:
    """The second half of a spectrum from the first: its conjugates in reverse."""
    count = op.Reshape(integer(length) if isinstance(length, int) else length, integers(-1))
    kept = op.Add(op.Div(count, integers(2)), integers(1))
    first = op.Slice(half, integers(0), kept, integers(axis))
    inner = op.Slice(first, integers(1), op.Sub(count, op.Div(count, integers(2))), integers(axis))
    reverse = op.Slice(inner, integers(-1), integers(-_ALL), integers(axis), integers(-1))
    return op.Concat(first, conjugate(reverse), axis=axis)
