"""Bessel functions and incomplete gamma functions, computed in double precision for float results.

Near zero by power series, for large arguments by asymptotic series; modified ones of the second kind by the integral
of ``exp(-x · cosh(t)) · cosh(order · t)``, for which the trapezoidal rule is nearly exact.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from precast.onnx.rules.loops import loop
from precast.onnx.rules.opsets import integer, integers, op
from precast.onnx.rules.registry import rule
from precast.onnx.rules.special_functions import log_gamma

_DOUBLE = ir.DataType.DOUBLE
_FAR = 14.0
"""The asymptotic series of the oscillating functions are precise from here on; the power series up to here."""
_TERMS = 45
_ASYMPTOTIC_TERMS = 12
_FAR_MODIFIED = 50.0
_STEP, _REACH = 1 / 16, 24.0
"""The grid of the integral: beyond its end, the integrand vanishes for arguments from 1e-8 on."""


def _double(value: float) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=_DOUBLE))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """By Horner's rule; coefficients start with the lowest power."""
    result = _double(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = op.Add(op.Mul(result, x), _double(coefficient))
    return result


def _series(order: int) -> list[float]:
    """The coefficients of the Bessel function of the first kind over ``(x/2)**order``, in ``x**2/4``."""
    return [(-1.0) ** k / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS)]


def _harmonic(number: int) -> float:
    return sum(1 / k for k in range(1, number + 1))


def _hankel(order: int) -> tuple[list[float], list[float]]:
    """The coefficients of the two asymptotic series, in ``1/x**2``."""
    terms = [1.0]
    for k in range(1, 2 * _ASYMPTOTIC_TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    signs = [(-1.0) ** k for k in range(_ASYMPTOTIC_TERMS)]
    even = [sign * term for sign, term in zip(signs, terms[::2], strict=True)]
    odd = [sign * term for sign, term in zip(signs, terms[1::2], strict=True)]
    return even, odd


def _far(x: Any, order: int, *, is_second: bool) -> Any:
    even, odd = _hankel(order)
    inverse = op.Reciprocal(x)
    square = op.Mul(inverse, inverse)
    first, second = _polynomial(square, even), op.Mul(inverse, _polynomial(square, odd))
    angle = op.Sub(x, _double((order / 2 + 1 / 4) * math.pi))
    cosine, sine = op.Cos(angle), op.Sin(angle)
    if is_second:
        total = op.Add(op.Mul(first, sine), op.Mul(second, cosine))
    else:
        total = op.Sub(op.Mul(first, cosine), op.Mul(second, sine))
    return op.Mul(op.Sqrt(op.Mul(_double(2 / math.pi), inverse)), total)


def _near_first(x: Any, order: int) -> Any:
    value = _polynomial(op.Mul(op.Mul(x, x), _double(0.25)), _series(order))
    return op.Mul(value, op.Mul(x, _double(0.5))) if order else value


def _near_second(x: Any, order: int) -> Any:
    square = op.Mul(op.Mul(x, x), _double(0.25))
    log = op.Add(op.Log(op.Mul(x, _double(0.5))), _double(np.euler_gamma))
    main = op.Mul(op.Mul(_double(2 / math.pi), log), _near_first(x, order))
    sums = [_harmonic(k) + _harmonic(k + order) for k in range(_TERMS)]
    rest = _polynomial(square, [term * total for term, total in zip(_series(order), sums, strict=True)])
    rest = op.Mul(rest, _double(1 / math.pi))
    if not order:
        return op.Sub(main, rest)
    half = op.Mul(x, _double(0.5))
    return op.Sub(op.Sub(main, op.Mul(rest, half)), op.Div(_double(1 / math.pi), half))


def _first_kind(x: Any, order: int) -> Any:
    wide = op.Cast(x, to=_DOUBLE)
    size = op.Abs(wide)
    near = _near_first(op.Min(size, _double(_FAR)), order)
    far = _far(op.Max(size, _double(_FAR)), order, is_second=False)
    result = op.Where(op.Less(size, _double(_FAR)), near, far)
    result = op.Mul(result, op.Sign(wide)) if order else result
    return op.CastLike(result, x)


def _second_kind(x: Any, order: int) -> Any:
    wide = op.Cast(x, to=_DOUBLE)
    near = _near_second(op.Min(wide, _double(_FAR)), order)
    far = _far(op.Max(wide, _double(_FAR)), order, is_second=True)
    result = op.Where(op.Less(wide, _double(_FAR)), near, far)
    result = op.Where(op.Equal(wide, _double(0.0)), _double(-math.inf), result)
    result = op.Where(op.Less(wide, _double(0.0)), _double(math.nan), result)
    return op.CastLike(result, x)


def _scaled_modified(x: Any, order: float) -> Any:
    """The modified function of the second kind times ``exp(x)``, for positive arguments."""
    points = np.arange(0.0, _REACH, _STEP)
    weights = np.cosh(order * points) * _STEP
    weights[0] /= 2
    near = op.Unsqueeze(op.Min(x, _double(_FAR_MODIFIED)), integers(-1))
    grown = op.Constant(value=ir.tensor(np.cosh(points) - 1))
    values = op.Exp(op.Neg(op.Mul(near, grown)))
    summed = op.ReduceSum(op.Mul(values, op.Constant(value=ir.tensor(weights))), integers(-1), keepdims=0)
    terms = [1.0]
    for k in range(1, _ASYMPTOTIC_TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    inverse = op.Reciprocal(op.Max(x, _double(_FAR_MODIFIED)))
    far = op.Mul(op.Sqrt(op.Mul(_double(math.pi / 2), inverse)), _polynomial(inverse, terms))
    return op.Where(op.Less(x, _double(_FAR_MODIFIED)), summed, far)


def _modified(x: Any, order: int, *, is_scaled: bool) -> Any:
    wide = op.Cast(x, to=_DOUBLE)
    result = _scaled_modified(wide, order)
    if not is_scaled:
        result = op.Mul(result, op.Exp(op.Neg(wide)))
    result = op.Where(op.Equal(wide, _double(0.0)), _double(math.inf), result)
    return op.CastLike(op.Where(op.Less(wide, _double(0.0)), _double(math.nan), result), x)


def _register() -> None:
    kinds = {
        "bessel_j0": (_first_kind, {"order": 0}), "bessel_j1": (_first_kind, {"order": 1}),
        "bessel_y0": (_second_kind, {"order": 0}), "bessel_y1": (_second_kind, {"order": 1}),
        "modified_bessel_k0": (_modified, {"order": 0, "is_scaled": False}),
        "modified_bessel_k1": (_modified, {"order": 1, "is_scaled": False}),
        "scaled_modified_bessel_k0": (_modified, {"order": 0, "is_scaled": True}),
        "scaled_modified_bessel_k1": (_modified, {"order": 1, "is_scaled": True}),
    }  # fmt: skip
    for name, (function, options) in kinds.items():

        def evaluate(x: Any, function: Any = function, options: Any = options) -> Any:
            return function(x, **options)

        evaluate.__name__ = name
        names = (f"aten::special_{name}", f"prims::{name}") if name in ("bessel_j0", "bessel_j1") else ()
        rule(*(names or (f"aten::special_{name}",)))(evaluate)


_register()


@rule("aten::igamma", "aten::special_gammainc", "prims::igamma")
def lower_incomplete_gamma(a: Any, x: Any) -> Any:
    return op.CastLike(_incomplete_gammas(a, x)[0], a)


@rule("aten::igammac", "aten::special_gammaincc", "prims::igammac")
def upper_incomplete_gamma(a: Any, x: Any) -> Any:
    return op.CastLike(_incomplete_gammas(a, x)[1], a)


def _incomplete_gammas(a: Any, x: Any) -> tuple[Any, Any]:
    """Both; one is computed, by its series up to ``a + 1`` and by its continued fraction beyond, the other follows."""
    a, x = op.Cast(a, to=_DOUBLE), op.Cast(x, to=_DOUBLE)
    shape = op.Shape(op.Add(a, x))
    a, x = op.Expand(a, shape), op.Expand(x, shape)
    for value in (a, x):
        value.dtype = _DOUBLE
    one, zero, tiny = _double(1.0), _double(0.0), _double(1e-300)
    is_near = op.Less(x, op.Add(a, one))
    safe = op.Where(op.And(op.Greater(a, zero), op.Less(a, _double(1e12))), a, one)
    log_size = op.Sub(op.Sub(op.Mul(safe, op.Log(op.Max(x, tiny))), x), log_gamma(safe))
    size = op.Exp(log_size)
    # Enough steps for both, since both converge most slowly where x is about a.
    largest = op.ReduceMax(safe, keepdims=0)
    steps = op.Add(op.Mul(op.Sqrt(op.Min(largest, _double(1e8))), _double(12.0)), _double(60.0))
    count = op.Cast(steps, to=ir.DataType.INT64)
    near, far = op.Where(is_near, x, zero), op.Where(is_near, op.Add(safe, _double(2.0)), x)

    def step(number: Any, term: Any, total: Any, fraction: Any, c: Any, d: Any) -> list[Any]:
        n = op.Cast(op.Add(number, integer(1)), to=_DOUBLE)
        term = op.Div(op.Mul(term, near), op.Add(safe, n))
        total = op.Add(total, term)
        numerator = op.Mul(n, op.Sub(safe, n))
        base = op.Add(op.Sub(far, safe), op.Add(op.Mul(n, _double(2.0)), one))
        d = op.Reciprocal(_off_zero(op.Add(base, op.Mul(numerator, d))))
        c = _off_zero(op.Add(base, op.Div(numerator, c)))
        return [term, total, op.Mul(fraction, op.Mul(c, d)), c, d]

    start = op.Reciprocal(safe)
    base = op.Add(op.Sub(far, safe), one)
    first = op.Reciprocal(_off_zero(base))
    carried = [start, start, first, op.Expand(_double(1e300), shape), first]
    for value in carried:
        value.dtype = _DOUBLE
    _, total, fraction, _, _ = loop(step, count, carried)
    lower, upper = op.Mul(total, size), op.Mul(fraction, size)
    lower, upper = op.Where(is_near, lower, op.Sub(one, upper)), op.Where(is_near, op.Sub(one, lower), upper)
    return _at_edges(a, x, lower, upper)


def _off_zero(value: Any) -> Any:
    return op.Where(op.Less(op.Abs(value), _double(1e-300)), _double(1e-300), value)


def _at_edges(a: Any, x: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    zero, one, nan = _double(0.0), _double(1.0), _double(math.nan)
    is_start, is_end = op.Equal(x, zero), op.IsInf(x)
    lower = op.Where(is_start, zero, op.Where(is_end, one, lower))
    upper = op.Where(is_start, one, op.Where(is_end, zero, upper))
    # A gamma distribution of shape 0 is concentrated at 0, one of infinite shape at infinity.
    is_none, is_infinite = op.Equal(a, zero), op.IsInf(a)
    lower = op.Where(is_none, one, op.Where(is_infinite, zero, lower))
    upper = op.Where(is_none, zero, op.Where(is_infinite, one, upper))
    are_both_odd = op.Or(op.And(is_none, is_start), op.And(is_infinite, is_end))
    is_wrong = op.Or(op.Or(op.Less(a, zero), op.Less(x, zero)), op.Or(are_both_odd, op.Or(op.IsNaN(a), op.IsNaN(x))))
    return op.Where(is_wrong, nan, lower), op.Where(is_wrong, nan, upper)
