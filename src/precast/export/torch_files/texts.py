"""Parses the expressions over sizes that PyTorch's programs store as text. Nothing is evaluated.

``Add(Symbol('s77', integer=True), Integer(1))`` and ``L['x'].size()[0] % 2 == 0`` become ``["Add", "s77", 1]`` and
``["Equality", ["PythonMod", "s77", 2], 0]``.
"""

import ast
from collections.abc import Callable
from typing import Any

import sympy

from precast.artifact.schema import Json, brief, damaged
from precast.graph.expressions import FUNCTION_NAMES

MAX_TEXT = 20_000
Source = Callable[[ast.expr], Json]
"""Resolves a size that a text reads from an input: ``L['x'].size()[0]``."""

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.FloorDiv: "FloorDiv", ast.Div: "IntTrueDiv", ast.Mod: "PythonMod",
    ast.Pow: "PowByNatural", ast.LShift: "LShift", ast.RShift: "RShift", ast.And: "And", ast.Or: "Or",
    ast.Eq: "Equality", ast.NotEq: "Unequality", ast.Lt: "StrictLessThan", ast.LtE: "LessThan",
    ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan",
}  # fmt: skip
_SHORT_NAMES = {
    name: function.__name__
    for name in ("Eq", "Ne", "Lt", "Le", "Gt", "Ge")
    if (function := getattr(sympy, name)) is not None
}
_NAMES = {"true": ["true"], "false": ["false"], "True": ["true"], "False": ["false"], "int_oo": ["int_oo"]}


def expression_from_text(text: Any, source: Source | None = None) -> Json:
    """Parse an expression; unknown parts mean a damaged file. Names are resolved by the caller."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise damaged("an expression over sizes is not text, or too long", f"at most {MAX_TEXT} characters are allowed")
    try:
        return _Reader(source).read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise damaged("an expression over sizes cannot be read", brief(text)) from problem


class _Reader:
    def __init__(self, source: Source | None) -> None:
        self._source = source

    def read(self, node: ast.expr) -> Json:
        match node:
            case ast.Constant(value=bool() as flag):
                return ["true" if flag else "false"]
            case ast.Constant(value=int() as number):
                return number
            case ast.Constant(value=float() as number):
                return ["Float", number.hex()]
            case ast.Name(id=name):
                return list(_NAMES[name]) if name in _NAMES else name
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negated(self.read(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ["Not", self.read(operand)]
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return ["Add", self.read(left), _negated(self.read(right))]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return [_OPERATORS[type(op)], self.read(left), self.read(right)]
            case ast.BoolOp(op=op, values=values):
                return [_OPERATORS[type(op)], *map(self.read, values)]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return [_OPERATORS[type(op)], self.read(left), self.read(right)]
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._called(name, arguments)
            case ast.Subscript() | ast.Call(func=ast.Attribute()) if self._source is not None:
                return self._source(node)
        raise damaged("an expression over sizes is malformed", f"it holds {brief(ast.dump(node))}")

    def _called(self, name: str, arguments: list[ast.expr]) -> Json:
        match name, arguments:
            case "Symbol", [ast.Constant(value=str() as symbol)]:
                return symbol
            case "Integer", [number]:
                return self.read(number)
            case "Float", [ast.Constant(value=str() as digits)]:
                return ["Float", float(digits).hex()]
            case "Rational", [_, _]:
                return ["Rational", *map(self.read, arguments)]
        name = _SHORT_NAMES.get(name, name)
        if name not in FUNCTION_NAMES:
            raise damaged(f"an expression uses the function {name[:80]!r}", "no such function is known")
        return [name, *map(self.read, arguments)]


def _negated(content: Json) -> Json:
    return -content if isinstance(content, int) else ["Mul", -1, content]
