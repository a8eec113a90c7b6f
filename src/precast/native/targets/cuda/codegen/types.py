"""Triton's spellings of loop IR's element types, numbers and subscripts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from precast.artifact.dtypes import DTYPES
from precast.native.loops.index import Atom, Computed, Extreme, Index, Quotient, Symbol, Variable, is_non_negative

# In registers, 16-bit floats are floats rounded to fewer digits, which eager computes with.
TRITON_TYPES = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float32", "bf16": "tl.float32", "i64": "tl.int64",
    "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
HALF_TYPES = {"f16": "tl.float16", "bf16": "tl.bfloat16"}
POINTER_TYPES = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i64": "*i64", "i32": "*i32", "i16": "*i16",
    "i8": "*i8", "u8": "*u8", "bool": "*u8",
}  # fmt: skip


def literal(value: float | int | bool, dtype: str) -> str:
    """A literal with exactly this value and type."""
    spelling = TRITON_TYPES[dtype]
    if value == 0 and math.copysign(1, value) < 0:
        # Triton takes any zero for a positive one.
        return f"tl.full((), 0.0, {spelling}) * -1.0"
    if dtype == "bool":
        return f"tl.full((), {int(bool(value))}, tl.int1)"
    if dtype in ("f64", "f32"):
        return f"tl.full((), {_float_text(float(value))}, {spelling})"
    if dtype in HALF_TYPES:
        return f"tl.full((), {_float_text(float(value))}, {HALF_TYPES[dtype]}).to(tl.float32)"
    return f"tl.full((), {_wrapped(int(value), dtype)}, {spelling})"


def _wrapped(value: int, dtype: str) -> int:
    """The value that a type's bits hold."""
    size = 1 << 8 * DTYPES[dtype].item_size
    return value % size if dtype == "u8" else (value + size // 2) % size - size // 2


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def index_text(index: Index, names: Mapping[Atom, str]) -> str:
    """A subscript; `names` are those of variables, sizes and computed subscripts."""
    parts: list[str] = []
    for monomial, coefficient in index.terms:
        factors = [_atom_text(factor, names) for factor in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(sign + " * ".join(factors))
    return "".join(parts) or "0"


def _atom_text(factor: Atom, names: Mapping[Atom, str]) -> str:
    if factor in names:
        return names[factor]
    if isinstance(factor, Symbol | Variable | Computed):
        raise AssertionError(f"{factor.text} has no name here")
    if isinstance(factor, Extreme):
        function = f"tl.{factor.kind}imum"
        return f"{function}({index_text(factor.first, names)}, {index_text(factor.second, names)})"
    numerator, denominator = index_text(factor.numerator, names), index_text(factor.denominator, names)
    is_quotient = isinstance(factor, Quotient)
    if not is_non_negative(factor.numerator):
        return f"{'floor_divide' if is_quotient else 'floor_remainder'}({numerator}, {denominator})"
    return f"(({numerator}) {'//' if is_quotient else '%'} ({denominator}))"
