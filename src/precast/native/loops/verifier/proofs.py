"""Proofs of inequalities between integer expressions, for all values of loop variables and sizes.

``n - 2*i - 1 >= 0`` where ``i < n // 2``: the last `i` makes it ``n - 2*(n // 2) + 1``, and ``2*(n // 2) <= n``.
Failing to find a proof proves nothing: the inequality may hold all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from precast.native.loops.index import (
    Atom,
    Computed,
    Extreme,
    Index,
    Quotient,
    Remainder,
    Variable,
    atom,
    atoms,
    coefficient_of,
    constant,
    is_non_negative,
    substitute,
)
from precast.native.loops.memoize import remembered
from precast.native.loops.scalars import Apply, IndexValue, Scalar, conjuncts

Facts = tuple[Index, ...]
"""Expressions that are known to be non-negative."""

Ranges = frozenset[Index]
DEPTH = 8
"""How many atoms of an expression are replaced by their bounds before the search is given up."""
MOST_PAIRED = 6
"""With more facts than this, no two are combined in one proof."""


def facts_of(condition: Scalar | None) -> Facts:
    """The inequalities that a condition on subscripts implies."""
    found: list[Index] = []
    for each in conjuncts(condition):
        match each:
            case Apply(operation, (IndexValue(left), IndexValue(right))):
                found += _differences(operation, left, right)
    return tuple(found)


def _differences(operation: str, left: Index, right: Index) -> list[Index]:
    match operation:
        case "ge":
            return [left - right]
        case "gt":
            return [left - right - 1]
        case "le":
            return [right - left]
        case "lt":
            return [right - left - 1]
        case "eq":
            return [left - right, right - left]
    return []


def is_proved(value: Index, facts: Facts = ()) -> bool:
    """Whether ``value >= 0`` was proved, given that no enclosing loop is empty and that `facts` hold."""
    return any(_is_proved(value - fact, frozenset(facts), DEPTH) for fact in (constant(0), *facts))


@remembered
def _is_proved(value: Index, facts: Ranges, depth: int) -> bool:
    if is_non_negative(value):
        return True
    # Inside a loop, its range is not empty.
    ranges = {each.extent - 1 for each in atoms(value) if isinstance(each, Variable | Computed)}
    facts = facts.union(each for each in ranges if each.constant is None)
    ways = list(_bounds(value, facts, depth)) if depth else []
    if ways:
        return any(all(_is_proved(each, facts, depth - 1) for each in bounds) for bounds in ways)
    singles = (value - first for first in facts)
    pairs = (value - first - second for first in facts for second in facts if len(facts) <= MOST_PAIRED)
    return any(map(is_non_negative, chain(singles, pairs)))


def _bounds(value: Index, facts: Ranges, depth: int) -> Iterator[list[Index]]:
    """Sufficient conditions: lists of expressions without one of its atoms, all of which must be non-negative."""
    factors = sorted(atoms(value), key=lambda one: one.text)
    for each in factors:
        slope = _slope(value, each) if isinstance(each, Variable | Computed) else None
        if slope is not None and _is_proved(slope, facts, min(depth - 1, 2)):
            yield [substitute(value, {each: constant(0)})]
            return
        if slope is not None and _is_proved(slope * -1, facts, min(depth - 1, 2)):
            assert isinstance(each, Variable | Computed), "only these have slopes"
            yield [substitute(value, {each: each.extent - 1})]
            return
    for each in factors:
        number = _number_before(value, each)
        if number:
            yield from _without(value, each, number)


def _slope(value: Index, factor: Variable | Computed) -> Index | None:
    """The change of the expression per step of a variable; None where that varies, or is undefined."""
    if isinstance(factor, Variable):
        slope = coefficient_of(value, factor)
        return None if slope == constant(0) else slope
    number = _number_before(value, factor)
    return constant(number) if number else None


def _number_before(value: Index, factor: Atom) -> int:
    """The coefficient of an atom's linear term; 0 if the atom also occurs elsewhere."""
    match [(monomial, number) for monomial, number in value.terms if factor in atoms(Index(((monomial, 1),)))]:
        case [((only,), number)] if only == factor:
            return number
    return 0


def _without(value: Index, factor: Atom, number: int) -> Iterator[list[Index]]:
    rest = value - atom(factor) * number
    match factor:
        case Quotient(numerator, denominator):
            # Floor division, times the denominator again: at most the numerator, less than a denominator below.
            yield [rest * denominator + (numerator - denominator + 1 if number > 0 else numerator) * number]
        case Remainder(numerator, denominator):
            yield [rest if number > 0 else rest + (denominator - 1) * number]
            if number < 0 and is_non_negative(numerator):
                yield [rest + numerator * number]
        case Extreme(kind, first, second):
            both = [rest + first * number], [rest + second * number]
            yield from both if (kind == "max") == (number > 0) else [both[0] + both[1]]
