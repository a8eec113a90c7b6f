"""Mantissas, exponents and neighbours of floating-point numbers, by arithmetic: ONNX reads no bits before opset 26.

Before: ``frexp(6.0)``
After:  ``exponent = Floor(Log2(6.0)); mantissa = 6.0 * powers[-exponent]``, corrected where the logarithm is rounded

Powers of two are taken from a table, since they must be exact.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from precast.onnx.rules.opsets import integer, number, op
from precast.onnx.rules.registry import rule

_Type = ir.DataType
# Digits, and the smallest and largest exponents of numbers that are not subnormal.
_FORMS = {
    _Type.FLOAT: (24, -126, 127),
    _Type.DOUBLE: (53, -1022, 1023),
    _Type.FLOAT16: (11, -14, 15),
    _Type.BFLOAT16: (8, -126, 127),
}


def _computed(x: Any) -> Any:
    """The number in a type that its exponents and digits fit into."""
    return x if x.dtype in (_Type.FLOAT, _Type.DOUBLE) else op.Cast(x, to=_Type.FLOAT)


def _powers(exponents: Any, like: Any) -> Any:
    """Powers of two, with exponents that are int64."""
    digits, least, largest = _FORMS[like.dtype]
    least -= digits - 1
    table = np.ldexp(np.ones(largest - least + 1, like.dtype.numpy()), np.arange(least, largest + 1))
    return op.Gather(op.Constant(value=ir.tensor(table)), op.Sub(exponents, integer(least)))


def _parts(size: Any) -> tuple[Any, Any]:
    """``mantissa, exponent`` of positive finite numbers; the mantissa is in [1, 2)."""
    largest = _FORMS[size.dtype][2]
    shift = largest // 2
    bounds = [number(2.0**-shift, size), number(2.0**shift, size)]
    is_small, is_large = op.Less(size, bounds[0]), op.Greater(size, bounds[1])
    size = op.Where(is_small, op.Mul(size, bounds[1]), op.Where(is_large, op.Mul(size, bounds[0]), size))
    offset = op.Where(is_small, integer(-shift), op.Where(is_large, integer(shift), integer(0)))
    rounded = op.Cast(op.Floor(op.Div(op.Log(size), number(math.log(2), size))), to=_Type.INT64)
    exponent = op.Clip(rounded, integer(-shift - 64), integer(shift + 64))
    mantissa = op.Mul(size, _powers(op.Neg(exponent), size))
    is_less, is_more = (op.Less(mantissa, number(1.0, size)), op.GreaterOrEqual(mantissa, number(2.0, size)))
    factor = op.Where(is_less, number(2.0, size), op.Where(is_more, number(0.5, size), number(1.0, size)))
    change = op.Where(is_less, integer(-1), op.Where(is_more, integer(1), integer(0)))
    return op.Mul(mantissa, factor), op.Add(op.Add(exponent, change), offset)


def _is_plain(x: Any) -> Any:
    """Whether numbers are neither zero, infinite nor NaN."""
    return op.Not(op.Or(op.Or(op.IsInf(x), op.IsNaN(x)), op.Equal(x, number(0.0, x))))


def _signed(x: Any, size: Any) -> Any:
    return op.Where(op.Less(x, number(0.0, x)), op.Neg(size), size)


@rule("aten::frexp.Tensor", "prims::frexp")
def frexp(x: Any) -> Any:
    """The mantissa is in [0.5, 1); numbers without parts are their own mantissa."""
    value = _computed(x)
    is_plain = _is_plain(value)
    mantissa, exponent = _parts(op.Where(is_plain, op.Abs(value), number(1.0, value)))
    half = op.Where(is_plain, _signed(value, op.Mul(mantissa, number(0.5, value))), value)
    exponent = op.Where(is_plain, op.Add(exponent, integer(1)), integer(0))
    return op.CastLike(half, x), op.Cast(exponent, to=_Type.INT32)


@rule("aten::nextafter", "prims::nextafter")
def next_after(x: Any, target: Any) -> Any:
    digits, least, largest = _FORMS[x.dtype]
    value, goal = _computed(x), _computed(target)
    is_plain = _is_plain(value)
    size = op.Where(is_plain, op.Abs(value), number(1.0, value))
    mantissa, exponent = _parts(size)
    is_growing = op.Equal(op.Greater(goal, value), op.Greater(value, number(0.0, value)))
    # Below a power of two, numbers are twice as close.
    is_power = op.And(op.Equal(mantissa, number(1.0, value)), op.Greater(exponent, integer(least)))
    halved = op.Where(op.And(is_power, op.Not(is_growing)), integer(1), integer(0))
    step = _powers(op.Sub(op.Max(exponent, integer(least)), op.Add(halved, integer(digits - 1))), value)
    moved = _signed(value, op.Where(is_growing, op.Add(size, step), op.Sub(size, step)))
    overflow = op.Greater(op.Abs(moved), number(math.ldexp(2 - 2.0 ** (1 - digits), largest), value))
    moved = op.Where(overflow, _signed(value, number(math.inf, value)), moved)
    from_zero = _signed(goal, number(math.ldexp(1.0, least - digits + 1), value))
    from_infinity = _signed(value, number(math.ldexp(2 - 2.0 ** (1 - digits), largest), value))
    found = op.Where(op.Equal(value, number(0.0, value)), from_zero, op.Where(op.IsInf(value), from_infinity, moved))
    found = op.Where(op.Equal(value, goal), goal, found)
    is_number = op.Not(op.Or(op.IsNaN(value), op.IsNaN(goal)))
    return op.CastLike(op.Where(is_number, found, number(math.nan, value)), x)
