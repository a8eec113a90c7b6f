"""Indices over sizes in the form of files: ``2*n + 1`` ↔ ``["Add", 0, ["Mul", 2, "n"], ["Mul", 1]]``.

The form is that of ``artifact.expressions``, whose functions have sympy's and torch's names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from precast.artifact.schema import Json
from precast.native.loops import index as of_loops
from precast.native.loops.index import Atom, Extreme, Index, Quotient, Remainder, Symbol, constant

FUNCTIONS: dict[str, Callable[..., Index]] = {
    "Add": lambda *parts: sum(parts, constant(0)),
    "Mul": lambda *parts: of_loops.product(parts),
    "FloorDiv": of_loops.floor_divide,
    "CleanDiv": of_loops.floor_divide,
    "Mod": of_loops.remainder,
    "PythonMod": of_loops.remainder,
    "Max": lambda *parts: reduce(of_loops.maximum, parts),
    "Min": lambda *parts: reduce(of_loops.minimum, parts),
}


def index_to_json(index: Index) -> Json:
    """Serialize an index over sizes; loop variables cannot occur in a file."""
    terms: list[Json] = [["Mul", coefficient, *map(_atom, monomial)] for monomial, coefficient in index.terms]
    return ["Add", 0, *terms]


def index_from_json(content: Json) -> Index:
    """The index that ``index_to_json`` wrote."""
    if isinstance(content, int):
        return constant(content)
    if isinstance(content, str):
        return of_loops.symbol(content)
    assert isinstance(content, list), f"{content} is not an expression"
    name, *arguments = content
    return FUNCTIONS[str(name)](*map(index_from_json, arguments))


def _atom(factor: Atom) -> Json:
    match factor:
        case Symbol(name):
            return name
        case Quotient(numerator, denominator):
            return ["FloorDiv", index_to_json(numerator), index_to_json(denominator)]
        case Remainder(numerator, denominator):
            return ["Mod", index_to_json(numerator), index_to_json(denominator)]
        case Extreme(kind, first, second):
            return [kind.capitalize(), index_to_json(first), index_to_json(second)]
    raise AssertionError(f"{factor} is not a size")
