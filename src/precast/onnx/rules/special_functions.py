"""Special functions, by series and rational approximations with single-precision accuracy.

They compute in double precision, so that float results are as precise as possible.
"""

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.opsets import op
from precast.onnx.rules.registry import rule

_DOUBLE = ir.DataType.DOUBLE
_PI = math.pi

# Lanczos' approximation with g = 7.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
# Bernoulli numbers B2, B4, … B14.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFT = 8
"""The asymptotic series of the digamma function is precise from here on."""
_ZETA_TERMS = 12
"""The number of terms of the zeta function that are summed before its tail is estimated."""
# Giles' polynomials for the inverse error function: near the middle, and in the tails.
_ERFINV_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
# Abramowitz and Stegun 9.8.1 to 9.8.4: Bessel functions up to 3.75, and scaled beyond.
_I0_SMALL = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_I0_LARGE = (
    0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592, 0.39894228,
)  # fmt: skip
_I1_SMALL = (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5)
_I1_LARGE = (
    -0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018, -0.03988024, 0.39894228,
)  # fmt: skip
# Abramowitz and Stegun 26.2.23: the quantiles of the normal distribution.
_QUANTILE_ABOVE = (0.010328, 0.802853, 2.515517)
_QUANTILE_BELOW = (0.001308, 0.189269, 1.432788, 1.0)
# A Chebyshev fit of log(erfc(z)) + z * z - log(t), in t = 1 / (1 + z / 2).
_LOG_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


def _double(value: float) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=_DOUBLE))


def _in_double(x: Any) -> Any:
    return op.Cast(x, to=_DOUBLE)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """By Horner's rule, from the highest power down."""
    result = _double(coefficients[0])
    for coefficient in coefficients[1:]:
        result = op.Add(op.Mul(result, x), _double(coefficient))
    return result


def _fraction(x: Any) -> Any:
    """The distance to the nearest integer, with sign; exactly zero at integers, where trigonometry would not be."""
    return op.Sub(x, op.Round(x))


@rule("aten::lgamma")
def log_gamma(x: Any) -> Any:
    return op.CastLike(_log_gamma(_in_double(x)), x)


def _log_gamma(x: Any) -> Any:
    is_small = op.Less(x, _double(0.5))
    z = op.Sub(op.Where(is_small, op.Sub(_double(1.0), x), x), _double(1.0))
    series = _double(_LANCZOS[0])
    for number, coefficient in enumerate(_LANCZOS[1:], start=1):
        series = op.Add(series, op.Div(_double(coefficient), op.Add(z, _double(float(number)))))
    t = op.Add(z, _double(7.5))
    main = op.Sub(op.Mul(op.Add(z, _double(0.5)), op.Log(t)), t)
    above = op.Add(op.Add(main, op.Log(series)), _double(0.5 * math.log(2 * _PI)))
    sine = op.Abs(op.Sin(op.Mul(_fraction(x), _double(_PI))))
    reflected = op.Sub(op.Log(op.Div(_double(_PI), sine)), above)
    finite = op.Where(is_small, reflected, above)
    return op.Where(op.IsInf(x), _double(math.inf), finite)


@rule("aten::mvlgamma")
def multivariate_log_gamma(x: Any, p: int) -> Any:
    wide = _in_double(x)
    total = _double(p * (p - 1) / 4 * math.log(_PI))
    for number in range(p):
        total = op.Add(total, _log_gamma(op.Sub(wide, _double(number / 2))))
    return op.CastLike(total, x)


@rule("aten::digamma")
def digamma(x: Any) -> Any:
    wide = _in_double(x)
    is_negative = op.Less(wide, _double(0.0))
    result = op.Where(is_negative, op.Sub(_double(1.0), wide), wide)
    shifts = [op.Reciprocal(op.Add(result, _double(float(number)))) for number in range(_SHIFT)]
    positive = op.Sub(_asymptotic_digamma(op.Add(result, _double(float(_SHIFT)))), op.Sum(*shifts))
    angle = op.Mul(_fraction(wide), _double(_PI))
    # onnxruntime has no tangent in double precision.
    reflected = op.Sub(positive, op.Div(op.Mul(_double(_PI), op.Cos(angle)), op.Sin(angle)))
    is_pole = op.And(is_negative, op.Equal(wide, op.Round(wide)))
    finite = op.Where(is_negative, op.Where(is_pole, _double(math.nan), reflected), positive)
    # At zero the sign of the infinity is the opposite of the zero's own.
    at_zero = op.Neg(op.Reciprocal(wide))
    return op.CastLike(op.Where(op.Equal(wide, _double(0.0)), at_zero, finite), x)


def _asymptotic_digamma(x: Any) -> Any:
    square = op.Reciprocal(op.Mul(x, x))
    terms = [number / (2 * index) for index, number in enumerate(_BERNOULLI, start=1)]
    tail = op.Mul(_polynomial(square, terms[::-1]), square)
    return op.Sub(op.Sub(op.Log(x), op.Div(_double(0.5), x)), tail)


@rule("aten::polygamma")
def polygamma(n: int, x: Any) -> Any:
    if n == 0:
        return digamma(x)
    factor = (-1) ** (n + 1) * math.factorial(n)
    return op.CastLike(op.Mul(_double(float(factor)), _zeta(_double(float(n + 1)), _in_double(x))), x)


@rule("aten::special_zeta", "aten::special_zeta.other_scalar", "aten::special_zeta.self_scalar")
def zeta(s: Any, q: Any) -> Any:
    like = s if isinstance(s, ir.Value) else q
    exponent, start = (_in_double(value) if isinstance(value, ir.Value) else _double(float(value)) for value in (s, q))
    return op.CastLike(_zeta(exponent, start), like)


def _zeta(s: Any, q: Any) -> Any:
    """By the Euler-Maclaurin formula; distant terms of a negative ``q`` are omitted."""
    power = op.Neg(s)
    terms = [op.Pow(op.Add(q, _double(float(number))), power) for number in range(_ZETA_TERMS)]
    end = op.Add(q, _double(float(_ZETA_TERMS)))
    last = op.Pow(end, power)
    tail = op.Add(op.Div(op.Mul(last, end), op.Sub(s, _double(1.0))), op.Mul(last, _double(0.5)))
    factor, term = s, op.Div(last, end)
    for index, number in enumerate(_BERNOULLI, start=1):
        tail = op.Add(tail, op.Mul(op.Mul(factor, term), _double(number / math.factorial(2 * index))))
        following = op.Mul(op.Add(s, _double(2.0 * index - 1)), op.Add(s, _double(2.0 * index)))
        factor, term = op.Mul(factor, following), op.Div(term, op.Mul(end, end))
    finite = op.Add(op.Sum(*terms), tail)
    is_whole = op.Equal(q, op.Floor(q))
    at_pole = op.Where(is_whole, _double(math.inf), op.Where(op.Equal(s, op.Floor(s)), finite, _double(math.nan)))
    result = op.Where(op.LessOrEqual(q, _double(0.0)), at_pole, finite)
    result = op.Where(op.Equal(s, _double(1.0)), _double(math.inf), result)
    return op.Where(op.Less(s, _double(1.0)), _double(math.nan), result)


@rule("aten::erfinv", "aten::special_erfinv")
def inverse_error_function(x: Any) -> Any:
    return op.CastLike(_erfinv(_in_double(x)), x)


def _erfinv(x: Any) -> Any:
    w = op.Neg(op.Log(op.Mul(op.Sub(_double(1.0), x), op.Add(_double(1.0), x))))
    middle = _polynomial(op.Sub(w, _double(2.5)), _ERFINV_MIDDLE)
    tail = _polynomial(op.Sub(op.Sqrt(w), _double(3.0)), _ERFINV_TAIL)
    finite = op.Mul(op.Where(op.Less(w, _double(5.0)), middle, tail), x)
    is_end = op.Equal(op.Abs(x), _double(1.0))
    return op.Where(is_end, op.Mul(x, _double(math.inf)), finite)


@rule("aten::special_ndtri")
def normal_quantile(x: Any) -> Any:
    """In the lower half, a rational approximation and three steps of Newton's method; the upper half by symmetry."""
    probability = _in_double(x)
    is_upper = op.Greater(probability, _double(0.5))
    log = op.Log(op.Where(is_upper, op.Sub(_double(1.0), probability), probability))
    t = op.Sqrt(op.Mul(log, _double(-2.0)))
    quantile = op.Sub(op.Div(_polynomial(t, _QUANTILE_ABOVE), _polynomial(t, _QUANTILE_BELOW)), t)
    for _ in range(3):
        reached = _log_ndtr(quantile)
        # The density over the probability: the derivative of its logarithm.
        growth = op.Exp(op.Sub(op.Mul(op.Mul(quantile, quantile), _double(-0.5)), reached))
        step = op.Div(op.Sub(reached, log), op.Mul(growth, _double(1 / math.sqrt(2 * _PI))))
        quantile = op.Sub(quantile, step)
    quantile = op.Where(op.IsInf(log), _double(-math.inf), quantile)
    return op.CastLike(op.Where(is_upper, op.Neg(quantile), quantile), x)


@rule("aten::special_log_ndtr")
def log_normal_probability(x: Any) -> Any:
    return op.CastLike(_log_ndtr(_in_double(x)), x)


def _log_ndtr(x: Any) -> Any:
    z = op.Mul(x, _double(-math.sqrt(0.5)))
    size = op.Abs(z)
    t = op.Reciprocal(op.Add(_double(1.0), op.Mul(size, _double(0.5))))
    log_erfc = op.Add(op.Sub(op.Log(t), op.Mul(size, size)), _polynomial(t, _LOG_ERFC))
    half = op.Sub(log_erfc, _double(math.log(2)))
    return op.Where(op.Less(z, _double(0.0)), op.Log(op.Sub(_double(1.0), op.Exp(half))), half)


@rule("aten::i0", "aten::special_i0", "aten::special_modified_bessel_i0")
def bessel_i0(x: Any) -> Any:
    return op.CastLike(op.Mul(_scaled_i0(_in_double(x)), op.Exp(op.Abs(_in_double(x)))), x)


@rule("aten::special_i0e")
def scaled_bessel_i0(x: Any) -> Any:
    return op.CastLike(_scaled_i0(_in_double(x)), x)


@rule("aten::special_i1", "aten::special_modified_bessel_i1")
def bessel_i1(x: Any) -> Any:
    return op.CastLike(op.Mul(_scaled_i1(_in_double(x)), op.Exp(op.Abs(_in_double(x)))), x)


@rule("aten::special_i1e")
def scaled_bessel_i1(x: Any) -> Any:
    return op.CastLike(_scaled_i1(_in_double(x)), x)


def _scaled_i0(x: Any) -> Any:
    size, square, inverse = _bessel_arguments(x)
    small = op.Mul(_polynomial(square, _I0_SMALL), op.Exp(op.Neg(size)))
    large = op.Div(_polynomial(inverse, _I0_LARGE), op.Sqrt(size))
    return op.Where(op.Less(size, _double(3.75)), small, large)


def _scaled_i1(x: Any) -> Any:
    size, square, inverse = _bessel_arguments(x)
    small = op.Mul(op.Mul(size, _polynomial(square, _I1_SMALL)), op.Exp(op.Neg(size)))
    large = op.Div(_polynomial(inverse, _I1_LARGE), op.Sqrt(size))
    return op.Mul(op.Where(op.Less(size, _double(3.75)), small, large), op.Sign(x))


def _bessel_arguments(x: Any) -> tuple[Any, Any, Any]:
    """The absolute value, the square of it over 3.75, and 3.75 over it."""
    size = op.Abs(x)
    part = op.Div(size, _double(3.75))
    return size, op.Mul(part, part), op.Reciprocal(part)


@rule("prims::spherical_bessel_j0", "aten::special_spherical_bessel_j0")
def spherical_bessel(x: Any) -> Any:
    wide = _in_double(x)
    is_zero = op.Equal(wide, _double(0.0))
    ratio = op.Div(op.Sin(wide), op.Where(is_zero, _double(1.0), wide))
    result = op.Where(op.IsInf(wide), _double(0.0), op.Where(is_zero, _double(1.0), ratio))
    return op.CastLike(result, x)
