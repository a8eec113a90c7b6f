"""Expressions over size symbols as they stand in files: ``["Add", 1, ["Mul", 2, "s0"]]`` is ``2*s0 + 1``.

The form is that of ``precast.export``; here it is checked and computed with whole numbers and fractions alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from numbers import Rational
from typing import Any

from precast.artifact.schema import Json, brief, damaged

MAX_DEPTH = 50
MAX_ARGUMENTS = 1000
MAX_EXPONENT = 64
MAX_NUMBER = 2**128

Number = Any
"""An int, a Fraction, a bool, or infinity as a float: Python's tower of numbers has no type of its own."""
Binding = Mapping[str, int]
"""The size that each symbol has."""


def _divide(numerator: Number, denominator: Number) -> Number:
    return Fraction(numerator) / Fraction(denominator)


def _floor_divide(numerator: Number, denominator: Number) -> Number:
    return numerator // denominator


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT or abs(base) > MAX_NUMBER:
        raise OverflowError("a huge power")
    return Fraction(base) ** Fraction(exponent)


def _truncated_remainder(numerator: Number, denominator: Number) -> Number:
    """The remainder as torch's ``Mod`` and Python's have it for the sizes that occur, which are not negative."""
    return numerator % denominator


def _modular_index(base: Number, divisor: Number, modulus: Number) -> Number:
    return base // divisor % modulus


def _piecewise(*pairs: Any) -> Number:
    for value, condition in pairs:
        if condition:
            chosen: Number = value
            return chosen
    raise ZeroDivisionError("no piece holds")


def _shift(sign: int) -> Callable[[Number, Number], Number]:
    return lambda value, places: value * 2**places if sign > 0 else value // 2**places


def _is_dense(*numbers: Number) -> Number:
    """Whether sizes (the first half) with these strides cover their memory without gaps or overlaps."""
    half = len(numbers) // 2
    pairs = sorted(zip(numbers[half:], numbers[:half], strict=True))
    expected: Number = 1
    for stride, size in pairs:
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True


_ANY = (1, MAX_ARGUMENTS)
# Function → (least and most arguments, what it computes).
_FUNCTIONS: dict[str, tuple[tuple[int, int], Callable[..., Number]]] = {
    "Add": (_ANY, lambda *parts: sum(parts)),
    "Mul": (_ANY, lambda *parts: math.prod(parts)),
    "Max": (_ANY, lambda *parts: max(parts)),
    "Min": (_ANY, lambda *parts: min(parts)),
    "And": (_ANY, lambda *parts: all(parts)),
    "Or": (_ANY, lambda *parts: any(parts)),
    "Not": ((1, 1), lambda part: not part),
    "Pow": ((2, 2), _power),
    "PowByNatural": ((2, 2), _power),
    "FloatPow": ((2, 2), _power),
    "Mod": ((2, 2), _truncated_remainder),
    "PythonMod": ((2, 2), _truncated_remainder),
    "FloorDiv": ((2, 2), _floor_divide),
    "CleanDiv": ((2, 2), _floor_divide),
    "CeilDiv": ((2, 2), lambda numerator, denominator: -(-numerator // denominator)),
    "IntTrueDiv": ((2, 2), _divide),
    "FloatTrueDiv": ((2, 2), _divide),
    "ModularIndexing": ((3, 3), _modular_index),
    "LShift": ((2, 2), _shift(1)),
    "RShift": ((2, 2), _shift(-1)),
    "floor": ((1, 1), math.floor),
    "FloorToInt": ((1, 1), math.floor),
    "ceiling": ((1, 1), math.ceil),
    "CeilToInt": ((1, 1), math.ceil),
    "TruncToInt": ((1, 1), math.trunc),
    "TruncToFloat": ((1, 1), math.trunc),
    "RoundToInt": ((1, 1), round),
    "RoundDecimal": ((2, 2), lambda value, places: round(Fraction(value), int(places))),
    "ToFloat": ((1, 1), Fraction),
    "Identity": ((1, 1), lambda value: value),
    "Where": ((3, 3), lambda condition, value, other: value if condition else other),
    "Piecewise": (_ANY, _piecewise),
    "ExprCondPair": ((2, 2), lambda value, condition: (value, condition)),
    "IsNonOverlappingAndDenseIndicator": (_ANY, _is_dense),
    "Eq": ((2, 2), lambda left, right: left == right),
    "Equality": ((2, 2), lambda left, right: left == right),
    "Ne": ((2, 2), lambda left, right: left != right),
    "Unequality": ((2, 2), lambda left, right: left != right),
    "Lt": ((2, 2), lambda left, right: left < right),
    "StrictLessThan": ((2, 2), lambda left, right: left < right),
    "Le": ((2, 2), lambda left, right: left <= right),
    "LessThan": ((2, 2), lambda left, right: left <= right),
    "Gt": ((2, 2), lambda left, right: left > right),
    "StrictGreaterThan": ((2, 2), lambda left, right: left > right),
    "Ge": ((2, 2), lambda left, right: left >= right),
    "GreaterThan": ((2, 2), lambda left, right: left >= right),
}
_CONSTANTS: dict[str, Number] = {"true": True, "false": False, "int_oo": math.inf, "-int_oo": -math.inf}
_OPERATORS = {
    "Add": " + ", "Mul": "*", "FloorDiv": " // ", "CleanDiv": " // ", "Mod": " % ", "PythonMod": " % ", "Pow": "**",
    "Eq": " == ", "Equality": " == ", "Ne": " != ", "Unequality": " != ", "Lt": " < ", "StrictLessThan": " < ",
    "Le": " <= ", "LessThan": " <= ", "Gt": " > ", "StrictGreaterThan": " > ", "Ge": " >= ", "GreaterThan": " >= ",
    "And": " and ", "Or": " or ", "PowByNatural": "**",
}  # fmt: skip


def check_expression(content: Json, symbols: Collection[str], depth: int = 0) -> None:
    """Raise unless this is an expression over these symbols."""
    if isinstance(content, bool) or depth > MAX_DEPTH:
        raise damaged("an expression over sizes is not as it should be", f"it holds {brief(content)} at depth {depth}")
    if isinstance(content, int):
        return
    if isinstance(content, str):
        if content not in symbols:
            raise damaged(f"an expression names the size {content[:80]!r}", "the file declares no such size")
        return
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        raise damaged("an expression over sizes is not as it should be", f"it holds {brief(content)}")
    name, *arguments = content
    if name in _CONSTANTS and not arguments:
        return
    if name == "Rational" and len(arguments) == 2 and all(type(each) is int for each in arguments) and arguments[1]:
        return
    least, most = _FUNCTIONS[name][0] if name in _FUNCTIONS else (1, 0)
    if not least <= len(arguments) <= most:
        raise damaged(f"an expression uses {str(name)[:80]!r}", "no such function of so many sizes is known")
    for argument in arguments:
        check_expression(argument, symbols, depth + 1)


def symbols_of(content: Json) -> Iterator[str]:
    """The symbols in an expression that was checked, as often as they occur."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for argument in content[1:]:
            yield from symbols_of(argument)


def evaluate(content: Json, binding: Binding) -> Number:
    """What an expression that was checked comes to; ``ArithmeticError`` where it has no value."""
    if isinstance(content, int):
        return content
    if isinstance(content, str):
        return binding[content]
    assert isinstance(content, list), "checked before"
    name, *arguments = content
    assert isinstance(name, str), "checked before"
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name == "Rational":
        return Fraction(*arguments)  # type: ignore[arg-type]
    result = _FUNCTIONS[name][1](*(evaluate(argument, binding) for argument in arguments))
    if isinstance(result, Rational) and not -MAX_NUMBER <= Fraction(result) <= MAX_NUMBER:
        raise OverflowError("a huge number")
    return result


def whole_number(content: Json, binding: Binding) -> int:
    """What an expression comes to where it is a size."""
    number = evaluate(content, binding)
    if number != int(number):
        raise ArithmeticError(f"{expression_text(content)} is {number}, no whole number")
    return int(number)


def holds(condition: Json, binding: Binding) -> bool:
    """Whether a condition is true; one that has no value is not."""
    try:
        return bool(evaluate(condition, binding))
    except (ArithmeticError, ValueError, TypeError):
        return False


def solve(content: Json, symbol: str, came: int, binding: Binding) -> int | None:
    """The size of `symbol` that makes an expression `came`; None if there is none, or it is not linear in it."""
    try:
        start, next_ = (evaluate(content, {**binding, symbol: size}) for size in (0, 1))
        slope = next_ - start
        if not slope or (came - start) % slope:
            return None
        size = int((came - start) // slope)
        return size if evaluate(content, {**binding, symbol: size}) == came else None
    except (ArithmeticError, ValueError, TypeError):
        return None


def expression_text(content: Json, names: Mapping[str, str] | None = None) -> str:
    """An expression as people write it."""
    if isinstance(content, str):
        return (names or {}).get(content, content)
    if not isinstance(content, list):
        return str(content)
    name, *arguments = content
    texts = [expression_text(argument, names) for argument in arguments]
    if name in _OPERATORS:
        inner = [f"({text})" if " " in text else text for text in texts]
        return _OPERATORS[str(name)].join(inner if name != "Add" else texts)
    return f"{name}({', '.join(texts)})" if texts else str(name)
