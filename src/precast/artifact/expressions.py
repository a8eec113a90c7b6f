"""Expressions over size symbols in files: ``["Add", 1, ["Mul", 2, "s0"]]`` is ``2*s0 + 1``.

The form is that of ``precast.export``; here expressions are checked, and evaluated with integers and fractions only.
Their length is bounded, and so are the digits of any intermediate number, whatever the sizes are.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

from precast.artifact.schema import Json, brief, damaged
from precast.errors import ArtifactError

MAX_DEPTH = 50
MAX_ARGUMENTS = 200
MAX_PARTS = 5000
"""The maximal number of numbers, symbols and functions in one expression."""
MAX_EXPONENT = 64
MAX_NUMBER = 2**128
MAX_BITS = 4096
"""The maximal number of binary digits of an intermediate number; sizes have 64."""
_SIZE_BITS = 64

Number = Any
"""An int, a Fraction, a bool, or infinity as a float: Python's numeric tower has no common type."""
Binding = Mapping[str, int]
"""The value of each symbol."""


def _divide(numerator: Number, denominator: Number) -> Number:
    return Fraction(numerator) / Fraction(denominator)


def _floor_divide(numerator: Number, denominator: Number) -> Number:
    return numerator // denominator


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise OverflowError("the power is too large")
    return Fraction(base) ** Fraction(exponent)


def _truncated_remainder(numerator: Number, denominator: Number) -> Number:
    """The remainder of torch's ``Mod``, which equals Python's for non-negative sizes."""
    return numerator % denominator


def _modular_index(base: Number, divisor: Number, modulus: Number) -> Number:
    return base // divisor % modulus


def _piecewise(*pairs: Any) -> Number:
    for value, condition in pairs:
        if condition:
            chosen: Number = value
            return chosen
    raise ZeroDivisionError("no case applies")


def _shift_left(value: Number, places: Number) -> Number:
    return value * 2 ** _places(places)


def _shift_right(value: Number, places: Number) -> Number:
    return value // 2 ** _places(places)


def _round_decimal(value: Number, places: Number) -> Number:
    return round(Fraction(value), _places(abs(places)) * (1 if places > 0 else -1))


def _places(number: Number) -> int:
    if not 0 <= number <= MAX_EXPONENT:
        raise OverflowError("a huge number of places")
    return int(number)


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


def _of_float(function: Callable[[float], float]) -> Callable[[Number], Number]:
    return lambda value: Fraction(function(float(value)))


_ANY = (1, MAX_ARGUMENTS)
OF_FLOATS = ("acos", "asin", "asinh", "atan", "cos", "log", "log2", "sin", "sqrt", "tan", "tanh")
"""Functions of ``math``, computed in floating point, whose results are not huge."""
# Function → (minimal and maximal number of arguments, implementation).
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
    "LShift": ((2, 2), _shift_left),
    "RShift": ((2, 2), _shift_right),
    "floor": ((1, 1), math.floor),
    "FloorToInt": ((1, 1), math.floor),
    "ceiling": ((1, 1), math.ceil),
    "CeilToInt": ((1, 1), math.ceil),
    "TruncToInt": ((1, 1), math.trunc),
    "TruncToFloat": ((1, 1), math.trunc),
    "RoundToInt": ((1, 1), round),
    "RoundDecimal": ((2, 2), _round_decimal),
    "ToFloat": ((1, 1), Fraction),
    "BitwiseFn_bitwise_and": ((2, 2), operator.and_),
    "BitwiseFn_bitwise_or": ((2, 2), operator.or_),
    "BitwiseFn_bitwise_xor": ((2, 2), operator.xor),
    **{f"OpaqueUnaryFn_{name}": ((1, 1), _of_float(getattr(math, name))) for name in OF_FLOATS},
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


_COUNTED = ("Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal")
"""Functions whose second argument is an exponent or a shift: it must be a literal, never a size."""
_FLOAT = re.compile(r"[+-]?0x[01]\.[0-9a-f]{1,16}p[+-]?[0-9]{1,4}|[+-]?(inf|nan)")


_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv")
_WHOLE = ("FloorDiv", "CleanDiv", "CeilDiv", "floor", "FloorToInt", "ceiling", "CeilToInt", "TruncToInt", "RoundToInt")


def check_expression(content: Json, symbols: Collection[str]) -> int:
    """Raise unless this is a bounded expression over these symbols; returns its number of parts."""
    walk = _Walk(symbols)
    walk.digits(content, 0)
    return walk.parts


Digits = tuple[int, int]
"""The maximal number of binary digits of a number's numerator and denominator."""


class _Walk:
    """One traversal of an expression, checking that everything is known, its length, and the magnitude of numbers."""

    def __init__(self, symbols: Collection[str]):
        self.symbols, self.parts = symbols, 0

    def digits(self, content: Json, depth: int) -> Digits:
        self.parts += 1
        if isinstance(content, bool) or depth > MAX_DEPTH or self.parts > MAX_PARTS:
            raise _misshapen(f"it holds {brief(content)} at depth {depth}, part {self.parts}")
        if isinstance(content, int):
            if not -MAX_NUMBER <= content <= MAX_NUMBER:
                raise damaged("an expression over sizes holds a huge number", f"at most {MAX_NUMBER} is allowed")
            return content.bit_length(), 0
        if isinstance(content, str):
            if content not in self.symbols:
                raise damaged(f"an expression names the size {content[:80]!r}", "the file declares no such size")
            return _SIZE_BITS, 0
        if not isinstance(content, list) or not content or not isinstance(content[0], str):
            raise _misshapen(f"it holds {brief(content)}")
        name, *arguments = content
        assert isinstance(name, str), "just checked"
        digits = self._constant(name, arguments) or self._function(name, arguments, depth)
        if sum(digits) > MAX_BITS:
            raise damaged("an expression over sizes can become a huge number", f"it is {brief(content)}")
        return digits

    def _constant(self, name: str, arguments: list[Json]) -> Digits | None:
        match arguments:
            case [] if name in _CONSTANTS:
                return 1, 0
            case [int(above), int(below)] if name == "Rational" and below and not isinstance(above or below, bool):
                return self.digits(above, MAX_DEPTH)[0], self.digits(below, MAX_DEPTH)[0]
            case [str(text)] if name == "Float" and _FLOAT.fullmatch(text):
                return _SIZE_BITS, _SIZE_BITS
        return None

    def _function(self, name: str, arguments: list[Json], depth: int) -> Digits:
        least, most = _FUNCTIONS[name][0] if name in _FUNCTIONS else (1, 0)
        if not least <= len(arguments) <= most:
            raise damaged(f"an expression uses {name[:80]!r}", "no function of this name and arity is known")
        if name in _COUNTED:
            above, below = self.digits(arguments[0], depth + 1)
            times = self._times(name, arguments[1])
            is_positive = isinstance(arguments[1], int) and arguments[1] >= 0
            return (above * max(times, 1), below * times) if is_positive else ((above + below) * times,) * 2
        parts = [self.digits(each, depth + 1) for each in arguments]
        aboves, belows = [above for above, _ in parts], [below for _, below in parts]
        if name.startswith("OpaqueUnaryFn_"):
            return _SIZE_BITS, _SIZE_BITS
        if name == "Mul":
            return sum(aboves), sum(belows)
        if name in _QUOTIENTS:
            return aboves[0] + belows[1], belows[0] + aboves[1]
        if name in _WHOLE:
            return sum(aboves) + sum(belows), 0
        return max(aboves) + sum(belows) + len(parts).bit_length(), sum(belows)

    def _times(self, name: str, content: Json) -> int:
        """An exponent or shift, which must be a literal number."""
        self.parts += 1
        match content:
            case bool():
                pass
            case int() if abs(content) <= MAX_EXPONENT:
                return abs(content)
            case ["Rational", int(above), int(below)] if below and max(abs(above), abs(below)) <= MAX_EXPONENT:
                return max(abs(above), abs(below))
            case ["Float", str(text)] if _FLOAT.fullmatch(text):
                exponent = abs(float.fromhex(text))
                return max(1, math.ceil(exponent)) if exponent <= MAX_EXPONENT else MAX_BITS
        raise damaged(f"an expression uses {name} with {brief(content)}", "that is not a small number")


def _misshapen(why: str) -> ArtifactError:
    return damaged("an expression over sizes is malformed", why)


def symbols_of(content: Json) -> Iterator[str]:
    """The symbols in a checked expression, as often as they occur."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list) and content[0] != "Float":
        for argument in content[1:]:
            yield from symbols_of(argument)


def evaluate(content: Json, binding: Binding) -> Number:
    """The value of a checked expression; ``ArithmeticError`` if it has none."""
    if isinstance(content, int):
        return content
    if isinstance(content, str):
        return binding[content]
    assert isinstance(content, list), "checked before"
    name, *arguments = content
    assert isinstance(name, str), "checked before"
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    try:
        if name == "Rational":
            return Fraction(*arguments)  # type: ignore[arg-type]
        if name == "Float":
            return Fraction(float.fromhex(str(arguments[0])))
        result = _FUNCTIONS[name][1](*(evaluate(argument, binding) for argument in arguments))
    except (TypeError, ValueError) as problem:
        raise ArithmeticError(str(problem)) from problem
    if isinstance(result, int | Fraction) and max(abs(result.numerator), result.denominator) > MAX_NUMBER:
        raise OverflowError("a huge number")
    return result


def whole_number(content: Json, binding: Binding) -> int:
    """The value of an expression that is a size."""
    number = evaluate(content, binding)
    try:
        whole = int(number)
    except (TypeError, ValueError) as problem:
        raise ArithmeticError(str(problem)) from problem
    if number != whole:
        raise ArithmeticError(f"{expression_text(content)} is {number}, not a whole number")
    return whole


def holds(condition: Json, binding: Binding) -> bool:
    """Whether a condition is true; one without a value is not."""
    try:
        return bool(evaluate(condition, binding))
    except ArithmeticError:
        return False


def solve(content: Json, symbol: str, came: int, binding: Binding) -> int | None:
    """The value of `symbol` for which an expression equals `came`; None if there is none, or it is not linear."""
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
    """An expression in the usual notation."""
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
