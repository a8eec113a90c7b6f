"""Operations of loop IR as Triton expressions; kernels for GPUs cannot compute any others."""

from __future__ import annotations

from collections.abc import Sequence

from precast.native.targets.cuda.codegen.types import TRITON_TYPES

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "logical_and": "&", "logical_or": "|", "logical_xor": "^",
}  # fmt: skip
# The accurate functions: Triton's own exp and division of floats are approximations.
_FLOAT_FUNCTIONS = {
    "acos": "libdevice.acos", "acosh": "libdevice.acosh", "asin": "libdevice.asin", "asinh": "libdevice.asinh",
    "atan": "libdevice.atan", "atan2": "libdevice.atan2", "atanh": "libdevice.atanh", "ceil": "libdevice.ceil",
    "copysign": "libdevice.copysign", "cos": "libdevice.cos", "cosh": "libdevice.cosh", "erf": "libdevice.erf",
    "erfc": "libdevice.erfc", "erfcx": "libdevice.erfcx", "erfinv": "libdevice.erfinv", "exp": "libdevice.exp",
    "exp2": "libdevice.exp2", "expm1": "libdevice.expm1", "floor": "libdevice.floor", "fmod": "libdevice.fmod",
    "hypot": "libdevice.hypot", "i0": "libdevice.cyl_bessel_i0", "i1": "libdevice.cyl_bessel_i1",
    "lgamma": "libdevice.lgamma", "log": "libdevice.log", "log10": "libdevice.log10", "log1p": "libdevice.log1p",
    "log2": "libdevice.log2", "maximum": "maximum", "minimum": "minimum", "nextafter": "libdevice.nextafter",
    "pow": "libdevice.pow", "remainder": "modulo", "round": "libdevice.rint", "rsqrt": "libdevice.rsqrt",
    "sigmoid": "sigmoid", "sign": "sign", "sin": "libdevice.sin", "sinh": "libdevice.sinh", "tan": "libdevice.tan",
    "tanh": "libdevice.tanh", "trunc": "libdevice.trunc", "bessel_j0": "libdevice.j0", "bessel_j1": "libdevice.j1",
    "bessel_y0": "libdevice.y0", "bessel_y1": "libdevice.y1", "ndtri": "libdevice.normcdfinv",
}  # fmt: skip
_WHOLE_FUNCTIONS = {
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "div_floor": "div_floor_whole",
    "div_trunc": "divide_whole", "fmod": "remainder_whole", "maximum": "tl.maximum", "minimum": "tl.minimum",
    "random_bits": "random_bits", "remainder": "modulo_whole", "sign": "sign",
}  # fmt: skip
_SAME_IF_WHOLE = frozenset({"ceil", "floor", "round", "trunc"})
# Triton computes small integer types as they are, or wider: the result is converted back.
_NARROW = frozenset({"i16", "i8", "u8"})
_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
_OTHERS = frozenset({
    "abs", "bitwise_not", "div", "div_floor", "div_trunc", "is_inf", "is_nan", "logical_not", "neg", "reciprocal",
    "sqrt", "where",
})  # fmt: skip


def is_known(operation: str, dtype: str) -> bool:
    """Whether an operation on operands of a type is supported."""
    if operation in _INFIX or operation in _OTHERS:
        return not (operation in ("div", "reciprocal", "sqrt") and dtype not in _FLOATS)
    return operation in (_FLOAT_FUNCTIONS if dtype in _FLOATS else _WHOLE_FUNCTIONS) or (
        operation in _SAME_IF_WHOLE and dtype not in _FLOATS
    )


def operation_text(operation: str, operands: Sequence[str], dtype: str) -> str:
    """The operation on operands of the type `dtype`; for `where`, that of its second operand."""
    text = _text(operation, operands, dtype)
    return f"({text}).to({TRITON_TYPES[dtype]})" if dtype in _NARROW and operation not in _COMPARING else text


_COMPARING = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "is_nan",
                        "is_inf", "logical_not"})  # fmt: skip


def _text(operation: str, operands: Sequence[str], dtype: str) -> str:
    is_float, is_single, first = dtype in _FLOATS, dtype in _FLOATS and dtype != "f64", operands[0]
    if operation in _INFIX:
        return f"{first} {_INFIX[operation]} {operands[1]}"
    if dtype == "bool" and operation in ("maximum", "minimum"):
        return f"{first} {'|' if operation == 'maximum' else '&'} {operands[1]}"
    if operation == "where":
        return f"tl.where({', '.join(operands)})"
    if operation in ("div", "reciprocal"):
        over, under = (f"tl.full((), 1.0, {TRITON_TYPES[dtype]})", first) if operation == "reciprocal" else operands
        return f"tl.div_rn({over}, {under})" if is_single else f"{over} / {under}"
    if operation == "sqrt":
        return f"tl.sqrt_rn({first})" if is_single else f"libdevice.sqrt({first})"
    if operation == "sigmoid":
        return f"sigmoid_single({first})" if is_single else f"sigmoid({first})"
    if operation == "neg":
        # Triton subtracts from 0, which loses the sign of zero.
        return f"{first} * -1.0" if is_float else f"-{first}"
    if operation == "abs":
        return first if dtype in ("u8", "bool") else f"tl.abs({first})"
    if operation in ("logical_not", "bitwise_not"):
        return f"{first} == 0" if operation == "logical_not" or dtype == "bool" else f"~{first}"
    if operation in ("is_nan", "is_inf"):
        return f"{first} != {first}" if operation == "is_nan" else _is_infinite(first, is_float)
    if is_float and operation in ("div_floor", "div_trunc"):
        quotient = f"tl.div_rn({first}, {operands[1]})" if is_single else f"({first} / {operands[1]})"
        if operation == "div_floor":
            return f"div_floor({first}, {operands[1]}, {quotient})"
        return f"libdevice.trunc({quotient})"
    if operation in _SAME_IF_WHOLE and not is_float:
        return first
    return f"{(_FLOAT_FUNCTIONS if is_float else _WHOLE_FUNCTIONS)[operation]}({', '.join(operands)})"


def _is_infinite(value: str, is_float: bool) -> str:
    return f'tl.abs({value}) == float("inf")' if is_float else f"{value} != {value}"
