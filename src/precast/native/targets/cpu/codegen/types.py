"""C++ spellings of loop IR's element types, numbers and subscripts."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from types import MappingProxyType

from precast.native.loops.index import Atom, Computed, Extreme, Index, Quotient, Symbol, Variable, is_non_negative

# In registers, 16-bit floats are floats rounded to fewer digits: GCC does not vectorize variables of class type.
CPP_TYPES = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "i64": "int64_t",
    "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "bool": "bool",
}  # fmt: skip
# GCC does not vectorize loads of bool, but it does vectorize loads of bytes.
MEMORY_TYPES = {**CPP_TYPES, "f16": "precast::float16", "bf16": "precast::bfloat16", "bool": "uint8_t"}
ROUNDING = {"f16": "precast::rounded_half", "bf16": "precast::rounded"}
"""16-bit float type → the function that rounds a float to it."""
TRUNCATION = {"f16": "precast::truncated_half", "bf16": "precast::truncated"}
"""16-bit float type → the function that converts such a float to its form in memory."""
_NEAREST = {"f16": "precast::nearest_half"}
"""16-bit float type → the function that does both at once, where that is faster."""

_KEYWORDS = frozenset({
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "const",
    "constexpr", "continue", "default", "delete", "do", "double", "else", "enum", "explicit", "export",
    "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace",
    "new", "noexcept", "not", "nullptr", "operator", "or", "private", "protected", "public", "register",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true",
    "try", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "xor",
})  # fmt: skip
_OURS = frozenset({
    "precast", "kernels", "frame", "std",
})  # fmt: skip


def identifier(name: str) -> str:
    """A C++ identifier as close to `name` as possible."""
    cleaned = re.sub(r"\W", "_", name)
    if cleaned in _KEYWORDS | _OURS:
        return f"{cleaned}_"
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


class Namer:
    """Makes distinct names."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def fresh(self, wish: str) -> str:
        base = identifier(wish)
        name, number = base, 0
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


def text_literal(text: str) -> str:
    """A string literal with exactly the UTF-8 bytes of this text."""
    return f'"{"".join(map(_character, text.encode()))}"'


def _character(byte: int) -> str:
    if byte in b'"\\':
        return f"\\{byte:c}"
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def literal(value: float | int | bool, dtype: str) -> str:
    """A C++ literal with exactly this value."""
    spelling = CPP_TYPES[dtype]
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in ROUNDING:
        return f"{ROUNDING[dtype]}({literal(value, 'f32')})"
    if dtype in ("f32", "f64"):
        return _float_literal(float(value), dtype)
    # The smallest 64-bit integer has no literal: C++ parses a minus and a number that is too large.
    number = "(-9223372036854775807 - 1)" if value == -(2**63) else str(int(value))
    is_int = dtype == "i32" and value > -(2**31)
    return number if is_int else f"{spelling}({number})"


def _float_literal(value: float, dtype: str) -> str:
    spelling, suffix = (CPP_TYPES[dtype], "f" if dtype == "f32" else "")
    if math.isnan(value):
        return f"precast::not_a_number<{spelling}>"
    if dtype == "f32" and math.isfinite(value):
        value = _single(value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}precast::infinity<{spelling}>"
    text = _shortest_single(value) if dtype == "f32" else repr(value)
    return text + suffix


def _single(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _shortest_single(value: float) -> str:
    """The shortest decimal that reads back as the float `value`."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _single(float(text)) == value:
            return text if any(mark in text for mark in ".en") else f"{text}.0"
    raise AssertionError(f"{value} is not a single-precision number")


def in_memory(value: str, dtype: str) -> str:
    """The text of a value as an element of a buffer: 16-bit floats have another form there."""
    if dtype not in TRUNCATION:
        return value
    rounding = f"{ROUNDING[dtype]}("
    if dtype in _NEAREST and value.startswith(rounding) and closes_at_end(value, len(rounding) - 1):
        return f"{_NEAREST[dtype]}{value.removeprefix(rounding[:-1])}"
    return f"{TRUNCATION[dtype]}({value})"


def closes_at_end(text: str, start: int) -> bool:
    """Whether the bracket that opens at `start` is closed by the text's last character."""
    depth = 0
    for position, character in enumerate(text[start:], start):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def index_text(index: Index, names: Mapping[Computed, str] = MappingProxyType({}), *, number: str = "int64_t") -> str:
    """A subscript in C++; `names` are those of computed subscripts, `number` is the type of sizes.

    Divisions of non-negative numbers use C++'s own operator.
    """
    parts: list[str] = []
    for monomial, coefficient in index.terms:
        factors = [_atom_text(factor, names, number) for factor in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(sign + " * ".join(factors))
    return "".join(parts) or "0"


def _atom_text(factor: Atom, names: Mapping[Computed, str], number: str) -> str:
    if isinstance(factor, Symbol | Variable):
        return identifier(factor.name)
    if isinstance(factor, Computed):
        return names[factor]
    if isinstance(factor, Extreme):
        # The standard library's take references, and GCC does not vectorize loops with them.
        name = {"max": "maximum", "min": "minimum"}[factor.kind]
        first, second = (index_text(each, names, number=number) for each in (factor.first, factor.second))
        return f"precast::{name}<{number}>({first}, {second})"
    numerator, denominator = (index_text(each, names, number=number) for each in (factor.numerator, factor.denominator))
    is_quotient = isinstance(factor, Quotient)
    if is_non_negative(factor.numerator):
        return f"(({numerator}) {'/' if is_quotient else '%'} ({denominator}))"
    return f"precast::{'floor_divide' if is_quotient else 'floor_remainder'}({numerator}, {denominator})"
