"""Operators on complex numbers that torchlib lacks or gets wrong; complex numbers are pairs along a last dimension.

Before: ``irfft(c64[4, 5]) -> f32[4, 8]``
After:  ``f32[4, 5, 2]``, completed to ``f32[4, 8, 2]`` by conjugates, and transformed; the real parts are the result
"""

from collections.abc import Sequence
from typing import Any

from precast.onnx.rules.opsets import integer, integers, number, op
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
