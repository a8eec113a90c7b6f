"""Upper bounds of expressions of sizes, some of them data-dependent: buffers are allocated for the bound.

``u * 4 + n`` with ``u <= n`` is at most ``n * 5``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from precast.native.loops.index import (
    Atom,
    Extreme,
    Index,
    Quotient,
    Remainder,
    Symbol,
    atom,
    atoms,
    constant,
    floor_divide,
    is_non_negative,
    maximum,
    minimum,
)
from precast.native.loops.program import LoopProgram

Bounds = Mapping[str, Index]
"""Data-dependent sizes, by name, and the upper bound of each, as an expression of other sizes."""
NO_BOUNDS: Bounds = MappingProxyType({})


def with_own_bounds(bounds: Bounds, program: LoopProgram) -> Bounds:
    """The bounds that hold inside a program, given those around it."""
    own = {source.symbol: upper_bound(source.bound, bounds) for source in program.sizes if source.bound is not None}
    return {**bounds, **own}


def upper_bound(value: Index, bounds: Bounds) -> Index:
    """An upper bound of an expression of sizes; the expression itself if none of them has a bound."""
    is_free = any(isinstance(each, Symbol) and each.name in bounds for each in atoms(value)) if bounds else False
    return _end(value, bounds, upper=True) if is_free else value


def _end(value: Index, bounds: Bounds, *, upper: bool) -> Index:
    total = constant(0)
    for monomial, coefficient in value.terms:
        term = constant(coefficient)
        for factor in monomial:
            term = term * _atom_end(factor, bounds, upper=upper == (coefficient > 0))
        total = total + term
    return total


def _atom_end(factor: Atom, bounds: Bounds, *, upper: bool) -> Index:
    match factor:
        case Symbol(name) if name in bounds:
            return bounds[name] if upper else constant(0)
        case Quotient(numerator, denominator):
            if not upper and is_non_negative(numerator):
                return constant(0)
            divisor = _end(denominator, bounds, upper=False)
            # A data-dependent size may be 0; what is divided by it then is empty.
            return floor_divide(_end(numerator, bounds, upper=upper), divisor if divisor == denominator else 1)
        case Remainder(_, denominator):
            return _end(denominator, bounds, upper=True) - 1 if upper else constant(0)
        case Extreme(kind, first, second):
            ends = [_end(each, bounds, upper=upper) for each in (first, second)]
            return maximum(*ends) if kind == "max" else minimum(*ends)
    return atom(factor)
