"""Expressions over size symbols as JSON: ``2*s0 + 1`` ↔ ``["Add", 1, ["Mul", 2, "s0"]]``. Nothing is ever evaluated."""

from collections.abc import Callable, Mapping

import sympy
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import int_oo

from precast.artifact.schema import Json, damaged

MAX_DEPTH = 50
MAX_ARGUMENTS = 1000
MAX_NUMBER = 2**128
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_FUNCTIONS: dict[str, Callable[..., sympy.Basic]] = {
    function.__name__: function
    for function in (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min, sympy.Mod, sympy.floor, sympy.ceiling,
        sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.And, sympy.Or, sympy.Not, sympy.Piecewise,
    )
}  # fmt: skip
_FUNCTIONS |= {
    name: getattr(torch_functions, name)
    for name in (
        "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift",
        "RShift", "Max", "Min", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
        "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
        "RoundDecimal", "ToFloat", "Identity", "Mod",
    )
    if hasattr(torch_functions, name)
}  # fmt: skip
FUNCTION_NAMES = frozenset(_FUNCTIONS)
_CONSTANTS = {"true": sympy.true, "false": sympy.false, "int_oo": int_oo, "-int_oo": -int_oo}


def expression_to_json(expression: sympy.Basic | int) -> Json:
    """Numbers as they are, symbols by name, everything else as a list that starts with the function's name."""
    if isinstance(expression, (int, sympy.Integer)):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        return str(expression.name)
    for name, constant in _CONSTANTS.items():
        if expression == constant:
            return [name]
    if isinstance(expression, sympy.Rational):
        return ["Rational", int(expression.p), int(expression.q)]
    if isinstance(expression, sympy.Float):
        return ["Float", float(expression).hex()]
    name = type(expression).__name__
    assert name in _FUNCTIONS, f"no form for {name}"
    return [name, *map(expression_to_json, expression.args)]


def expression_from_json(content: Json, symbols: Mapping[str, sympy.Symbol], depth: int = 0) -> sympy.Basic:
    """The expression, over these symbols; whatever is unknown in it is a damaged file."""
    if isinstance(content, bool) or depth > MAX_DEPTH:
        raise damaged("an expression over sizes is not as it should be", f"it holds {content!r} at depth {depth}")
    if isinstance(content, int):
        return sympy.Integer(content)
    if isinstance(content, str):
        if content not in symbols:
            raise damaged(f"an expression names the size {content!r}", "the file declares no such size")
        return symbols[content]
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        raise damaged("an expression over sizes is not as it should be", f"it holds {content!r}")
    name, *arguments = content
    if name in _CONSTANTS and not arguments:
        return _CONSTANTS[name]
    if name == "Rational" and len(arguments) == 2 and all(type(a) is int for a in arguments) and arguments[1]:
        return sympy.Rational(*arguments)
    if name == "Float" and len(arguments) == 1 and isinstance(arguments[0], str):
        return sympy.Float(float.fromhex(arguments[0]))
    if name not in _FUNCTIONS or len(arguments) > MAX_ARGUMENTS:
        raise damaged(f"an expression uses the function {str(name)[:80]!r}", "no such function of sizes is known")
    return _applied(name, [expression_from_json(each, symbols, depth + 1) for each in arguments])


def _applied(name: str, arguments: list[sympy.Basic]) -> sympy.Basic:
    """The function of its arguments, which sympy computes at once where they are numbers: so numbers stay small."""
    if name in _POWERS and any(argument.is_number and not abs(argument) <= 64 for argument in arguments[1:]):
        raise damaged("an expression has a huge exponent", f"it is {arguments[1]}")
    result = _FUNCTIONS[name](*arguments)
    if isinstance(result, sympy.Integer) and abs(result) > MAX_NUMBER:
        raise damaged("an expression over sizes is a huge number", f"at most {MAX_NUMBER} is allowed")
    return result
