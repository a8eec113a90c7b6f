"""Divisions that round, what they leave, shifts, and powers of whole numbers.

Before: ``floor_divide(f32[3], 0.1)``
After:  the quotient of what is left when the rest is taken away, ``(x - fmod(x, y)) / y``

1 / 0.1 is 10 when rounded, but 0.1 goes into 1 nine times: it is a little more than a tenth. Whole numbers stay whole
on the way, since floats do not hold all of them.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core

from precast.onnx.rules.opsets import number, op
from precast.onnx.rules.registry import rule

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _operands(x: Any, y: Any, *, rounds_divisor: bool = False) -> tuple[Any, Any, ir.DataType]:
    """Both as values, halves as singles, and the type of the result; of numbers, eager leaves some divisors exact."""
    like: Any = x if isinstance(x, ir.Value) else y
    if like.dtype not in _HALVES:
        return _value(x, like.dtype), _value(y, like.dtype), like.dtype
    divisor = _value(y, like.dtype if rounds_divisor else ir.DataType.FLOAT)
    return _cast(_value(x, like.dtype)), _cast(divisor), like.dtype


def _value(operand: Any, data_type: ir.DataType) -> Any:
    is_value = isinstance(operand, ir.Value)
    return operand if is_value else op.Constant(value=ir.tensor(operand, dtype=data_type))


def _cast(half: Any) -> Any:
    return op.Cast(half, to=ir.DataType.FLOAT)


def _narrowed(value: Any, data_type: ir.DataType) -> Any:
    return op.Cast(value, to=data_type) if data_type in _HALVES else value


def _rest(x: Any, y: Any) -> tuple[Any, Any]:
    """What is left of ``x``, with its sign; and whether the divisor has another sign."""
    rest, zero = op.Mod(x, y, fmod=1), number(0.0, x)
    differs = op.Xor(op.Less(rest, zero), op.Less(y, zero))
    return rest, op.And(differs, op.Not(op.Equal(rest, zero)))


@rule("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(x: Any, y: Any) -> Any:
    x, y, data_type = _operands(x, y)
    if not data_type.is_floating_point():
        return core.aten_floor_divide(x, y)
    rest, is_other = _rest(x, y)
    quotient = op.Round(op.Sub(op.Div(op.Sub(x, rest), y), op.CastLike(is_other, x)))
    return _narrowed(op.Where(op.Equal(y, number(0.0, x)), op.Div(x, y), quotient), data_type)


@rule("aten::div.Tensor_mode", "aten::div.Scalar_mode", "aten::divide.Tensor_mode", "aten::divide.Scalar_mode")
def divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return floor_divide(x, y)
    x, y = (value if isinstance(value, ir.Value) else number(value, x) for value in (x, y))
    quotient = op.Div(x, y)
    return core.aten_trunc(quotient) if rounding_mode == "trunc" and x.dtype.is_floating_point() else quotient


@rule("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", "prims::remainder")
def remainder(x: Any, y: Any) -> Any:
    x, y, data_type = _operands(x, y, rounds_divisor=True)
    if not data_type.is_floating_point():
        return op.Mod(x, y)
    rest, is_other = _rest(x, y)
    return _narrowed(op.Where(is_other, op.Add(rest, y), rest), data_type)


@rule("aten::fmod.Tensor", "aten::fmod.Scalar")
def rest(x: Any, y: Any) -> Any:
    x, y, data_type = _operands(x, y, rounds_divisor=True)
    return _narrowed(op.Mod(x, y, fmod=1), data_type)


_UNSIGNED = {
    ir.DataType.INT8: ir.DataType.UINT8,
    ir.DataType.INT16: ir.DataType.UINT16,
    ir.DataType.INT32: ir.DataType.UINT32,
    ir.DataType.INT64: ir.DataType.UINT64,
}


@rule(
    "aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift.Tensor_Scalar", "aten::__lshift__.Scalar",
    "aten::__lshift__.Tensor", "aten::bitwise_left_shift.Scalar_Tensor",
)  # fmt: skip
def shift_left(x: Any, by: Any) -> Any:
    x, by, data_type = _operands(x, by)
    unsigned = _UNSIGNED.get(data_type, data_type)
    shifted = op.BitShift(op.Cast(x, to=unsigned), op.Cast(by, to=unsigned), direction="LEFT")
    return op.Cast(shifted, to=data_type)


@rule(
    "aten::bitwise_right_shift.Tensor", "aten::bitwise_right_shift.Tensor_Scalar", "aten::__rshift__.Scalar",
    "aten::__rshift__.Tensor", "aten::bitwise_right_shift.Scalar_Tensor",
)  # fmt: skip
def shift_right(x: Any, by: Any) -> Any:
    """Of a negative number, that of the one with all its bits turned, turned back: the sign stays."""
    x, by, data_type = _operands(x, by)
    unsigned = _UNSIGNED.get(data_type, data_type)
    by = op.Cast(by, to=unsigned)
    if unsigned == data_type:
        return op.BitShift(x, by, direction="RIGHT")
    is_negative = op.Less(x, number(0, x))
    plain = op.Where(is_negative, op.BitwiseNot(x), x)
    shifted = op.Cast(op.BitShift(op.Cast(plain, to=unsigned), by, direction="RIGHT"), to=data_type)
    return op.Where(is_negative, op.BitwiseNot(shifted), shifted)


@rule("aten::pow.Tensor_Scalar")
def power(x: Any, exponent: Any) -> Any:
    """Of whole numbers by multiplying: onnxruntime computes powers in floats, which do not hold all of them."""
    if isinstance(exponent, ir.Value):
        return op.Pow(x, exponent)
    is_whole = isinstance(exponent, int) and not isinstance(exponent, bool) and exponent >= 0
    if x.dtype.is_floating_point() or x.dtype == ir.DataType.BOOL or not is_whole:
        return core.aten_pow_tensor_scalar(x, exponent)
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else op.Mul(result, x)
        exponent >>= 1
        x = op.Mul(x, x) if exponent else x
    return op.Add(op.Sub(x, x), number(1, x)) if result is None else op.Identity(result)
