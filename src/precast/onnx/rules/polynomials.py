"""Orthogonal polynomials whose degree is a tensor: their recurrence, up to the highest degree.

Before: ``special_legendre_polynomial_p(x, n)``
After:  a ``Loop`` over the degrees that keeps two neighbours, and stores each degree for the elements that need it
"""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.loops import loop
from precast.onnx.rules.opsets import op
from precast.onnx.rules.registry import rule

_DOUBLE = ir.DataType.DOUBLE

Next = Callable[[Any, Any, Any, Any], Any]
"""``next(x, degree, polynomial, the one before)``: the polynomial of ``degree + 1``."""


def _number(value: float) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=_DOUBLE))


def _evaluate(x: Any, degrees: Any, first: Callable[[Any], Any], following: Next) -> Any:
    """The polynomials in double precision; 0 for negative degrees."""
    data_type = x.dtype if isinstance(x, ir.Value) else degrees.dtype
    x, degrees = (_as_double(value) for value in (x, degrees))
    shape = op.Shape(op.Add(x, degrees))
    x = op.Expand(x, shape)
    degrees = op.Floor(op.Expand(degrees, shape))
    one = op.Expand(_number(1.0), shape)
    zero = op.Expand(_number(0.0), shape)
    second = op.Expand(first(x), shape)
    found = op.Where(op.Equal(degrees, one), second, op.Where(op.Equal(degrees, zero), one, zero))
    count = op.Cast(op.Max(op.ReduceMax(degrees, keepdims=0), _number(0.0)), to=ir.DataType.INT64)
    return op.Cast(_loop(x, degrees, count, [one, second, found], following), to=data_type)


def _as_double(value: Any) -> Any:
    return op.Cast(value, to=_DOUBLE) if isinstance(value, ir.Value) else _number(float(value))


def _loop(x: Any, degrees: Any, count: Any, start: list[Any], following: Next) -> Any:
    def step(number: Any, before: Any, latest: Any, found: Any) -> list[Any]:
        degree = op.Add(op.Cast(number, to=_DOUBLE), _number(1.0))
        new = following(x, degree, latest, before)
        return [latest, new, op.Where(op.Equal(degrees, op.Add(degree, _number(1.0))), new, found)]

    return loop(step, count, start)[2]


def _twice(x: Any) -> Any:
    return op.Mul(_number(2.0), x)


def _chebyshev(x: Any, degree: Any, latest: Any, before: Any) -> Any:
    return op.Sub(op.Mul(_twice(x), latest), before)


def _hermite(x: Any, degree: Any, latest: Any, before: Any) -> Any:
    return _twice(_hermite_e_like(x, degree, latest, before))


def _hermite_e_like(x: Any, degree: Any, latest: Any, before: Any) -> Any:
    return op.Sub(op.Mul(x, latest), op.Mul(degree, before))


def _laguerre(x: Any, degree: Any, latest: Any, before: Any) -> Any:
    odd = op.Add(_twice(degree), _number(1.0))
    return op.Div(op.Sub(op.Mul(op.Sub(odd, x), latest), op.Mul(degree, before)), op.Add(degree, _number(1.0)))


def _legendre(x: Any, degree: Any, latest: Any, before: Any) -> Any:
    odd = op.Add(_twice(degree), _number(1.0))
    return op.Div(op.Sub(op.Mul(op.Mul(odd, x), latest), op.Mul(degree, before)), op.Add(degree, _number(1.0)))


def _plus(offset: float, scale: float = 2.0) -> Callable[[Any], Any]:
    return lambda x: op.Add(op.Mul(_number(scale), x), _number(offset))


_FAMILIES: dict[str, tuple[Callable[[Any], Any], Next]] = {
    "chebyshev_polynomial_t": (_plus(0, 1), _chebyshev),
    "chebyshev_polynomial_u": (_plus(0), _chebyshev),
    "chebyshev_polynomial_v": (_plus(-1), _chebyshev),
    "chebyshev_polynomial_w": (_plus(1), _chebyshev),
    "hermite_polynomial_h": (_plus(0), _hermite),
    "hermite_polynomial_he": (_plus(0, 1), _hermite_e_like),
    "laguerre_polynomial_l": (_plus(1, -1), _laguerre),
    "legendre_polynomial_p": (_plus(0, 1), _legendre),
}


def _shifted(first: Callable[[Any], Any], following: Next) -> tuple[Callable[[Any], Any], Next]:
    """The same over 0 to 1 instead of -1 to 1."""
    move = _plus(-1)
    return (lambda x: first(move(x))), (lambda x, degree, latest, before: following(move(x), degree, latest, before))


def _register() -> None:
    shifted = {f"shifted_{name}": _shifted(*each) for name, each in _FAMILIES.items() if name.startswith("chebyshev")}
    for name, (first, following) in (_FAMILIES | shifted).items():

        def evaluate(x: Any, n: Any, first: Any = first, following: Any = following) -> Any:
            return _evaluate(x, n, first, following)

        evaluate.__name__ = name
        rule(*(f"aten::special_{name}{overload}" for overload in ("", ".x_scalar", ".n_scalar")))(evaluate)


_register()
