"""Expressions over size symbols as JSON: ``2*s0 + 1`` ↔ ``["Add", 1, ["Mul", 2, "s0"]]``. Nothing is ever evaluated."""

from collections.abc import Callable, Mapping

import sympy
from sympy.functions.elementary.piecewise import ExprCondPair
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import int_oo

from precast.artifact.expressions import OF_FLOATS, check_expression, symbols_of
from precast.artifact.schema import Json, damaged
from precast.errors import ArtifactError, ExportError

_FUNCTIONS: dict[str, Callable[..., sympy.Basic]] = {
    function.__name__: function
    for function in (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min, sympy.Mod, sympy.floor, sympy.ceiling,
        sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.And, sympy.Or, sympy.Not, sympy.Piecewise,
        ExprCondPair,
    )
}  # fmt: skip
_FUNCTIONS |= {
    name: getattr(torch_functions, name)
    for name in (
        "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift",
        "RShift", "Max", "Min", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
        "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
        "RoundDecimal", "ToFloat", "Identity", "Mod", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or",
        "BitwiseFn_bitwise_xor", *(f"OpaqueUnaryFn_{each}" for each in OF_FLOATS),
    )
    if hasattr(torch_functions, name)
}  # fmt: skip
FUNCTION_NAMES = frozenset(_FUNCTIONS)
_CONSTANTS = {"true": sympy.true, "false": sympy.false, "int_oo": int_oo, "-int_oo": -int_oo}


def expression_to_json(expression: sympy.Basic | int) -> Json:
    """Numbers as they are, symbols by name, everything else as a list that starts with the function's name.

    Expressions that a reader would refuse are refused here: see ``precast.artifact.expressions``.
    """
    content = _to_json(expression)
    try:
        check_expression(content, set(symbols_of(content)))
    except ArtifactError as problem:
        raise ExportError(
            f"The program has a size of {str(expression)[:200]}, which cannot be saved.",
            why=str(problem).partition("\n")[0] + "; readers refuse what could take forever to compute",
            fix="Fix that size, or compute it outside of the program.",
        ) from problem
    return content


def _to_json(expression: sympy.Basic | int) -> Json:
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
    if name not in _FUNCTIONS:
        raise ExportError(
            f"The program has a size of {str(expression)[:200]}, which cannot be saved.",
            why=f"files cannot express the function {name}",
            fix="Fix that size, or compute it outside of the program.",
        )
    return [name, *map(_to_json, expression.args)]


def expression_from_json(content: Json, symbols: Mapping[str, sympy.Symbol]) -> sympy.Basic:
    """The expression over these symbols; raises ArtifactError for unknown functions and symbols."""
    check_expression(content, symbols)
    return _from_json(content, symbols)


def _from_json(content: Json, symbols: Mapping[str, sympy.Symbol]) -> sympy.Basic:
    if isinstance(content, int):
        return sympy.Integer(content)
    if isinstance(content, str):
        return symbols[content]
    assert isinstance(content, list), "checked"
    name, *arguments = content
    assert isinstance(name, str), "checked"
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name == "Rational":
        return sympy.Rational(*arguments)
    if name == "Float":
        return sympy.Float(float.fromhex(str(arguments[0])))
    if name not in _FUNCTIONS:
        raise damaged(f"an expression uses the function {name!r}", "this version of torch has no such function")
    return _FUNCTIONS[name](*(_from_json(each, symbols) for each in arguments))
