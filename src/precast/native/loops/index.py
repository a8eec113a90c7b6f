"""Integer expressions over loop variables and dynamic sizes: subscripts, strides, sizes and offsets.

An ``Index`` is a polynomial with integer coefficients in normal form, so equal expressions compare equal, and most of
what views produce simplifies by itself: splitting a flat index by a size and joining it again returns it.
Our own type, not sympy: these are built by the ten thousand, and need four operations and two bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from precast.native.loops.memoize import hashed_once, remembered

if TYPE_CHECKING:
    from precast.native.loops.scalars import Scalar


@dataclass(frozen=True)
class Symbol:
    """A dynamic size, known at the call; never negative."""

    name: str

    @cached_property
    def text(self) -> str:
        return self.name


@hashed_once
@dataclass(frozen=True)
class Variable:
    """A loop variable: runs from 0 up to, not including, ``extent``."""

    name: str
    extent: Index

    @cached_property
    def text(self) -> str:
        return self.name


@hashed_once
@dataclass(frozen=True)
class Quotient:
    """``numerator // denominator``, rounded down."""

    numerator: Index
    denominator: Index

    @cached_property
    def text(self) -> str:
        return f"({self.numerator} // {_factor(self.denominator)})"


@hashed_once
@dataclass(frozen=True)
class Remainder:
    """``numerator % denominator``, never negative for a positive denominator."""

    numerator: Index
    denominator: Index

    @cached_property
    def text(self) -> str:
        return f"({self.numerator} % {_factor(self.denominator)})"


@dataclass(frozen=True)
class Extreme:
    """The larger (`kind` is max) or the smaller (min) of two expressions."""

    kind: str
    first: Index
    second: Index

    @cached_property
    def text(self) -> str:
        return f"{self.kind}({self.first}, {self.second})"


@dataclass(frozen=True)
class Computed:
    """A subscript that the loop computes, e.g. loads: an integer from 0 up to, not including, `extent`.

    Created by ``scalars.computed``; `mentioned` are the atoms that the value's own subscripts depend on. An access
    whose subscript may be out of range is guarded; where `is_certain`, the value is known to be in range.
    """

    name: str
    value: Scalar
    extent: Index
    mentioned: frozenset[Atom] = field(compare=False, default=frozenset())
    is_certain: bool = field(compare=False, default=False)

    @cached_property
    def text(self) -> str:
        return self.name


Atom = Symbol | Variable | Computed | Quotient | Remainder | Extreme
Monomial = tuple[Atom, ...]


@hashed_once
@dataclass(frozen=True)
class Index:
    """A sum of integer multiples of products of atoms, sorted by their text; the empty sum is 0."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def computed(self) -> tuple[Computed, ...]:
        """The computed subscripts inside, at any depth, each once."""
        found: dict[Computed, None] = {}
        for monomial, _ in self.terms:
            for factor in monomial:
                if isinstance(factor, Computed):
                    found[factor] = None
                for part in _parts(factor):
                    found.update(dict.fromkeys(part.computed))
        return tuple(found)

    @cached_property
    def constant(self) -> int | None:
        """The value if it is a constant; None if it depends on a variable or a size."""
        if not self.terms:
            return 0
        ((monomial, coefficient), *others) = self.terms
        return coefficient if not others and not monomial else None

    def __add__(self, other: Index | int) -> Index:
        return _sum((self, as_index(other)))

    def __sub__(self, other: Index | int) -> Index:
        return _sum((self, as_index(other) * -1))

    def __mul__(self, other: Index | int) -> Index:
        return _product(self, as_index(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        return _text(self)


def as_index(value: Index | int) -> Index:
    """Return `value` as an ``Index``."""
    return value if isinstance(value, Index) else constant(value)


@remembered
def constant(value: int) -> Index:
    return Index((((), value),)) if value else Index(())


@remembered
def atom(value: Atom) -> Index:
    return Index((((value,), 1),))


def symbol(name: str) -> Index:
    return atom(Symbol(name))


def product(factors: Iterable[Index | int]) -> Index:
    result = constant(1)
    for factor in factors:
        result = result * factor
    return result


@remembered
def floor_divide(numerator: Index | int, denominator: Index | int) -> Index:
    """Divide and round down, extracting terms that divide exactly and dropping those provably below the divisor."""
    numerator, denominator = as_index(numerator), as_index(denominator)
    whole, rest = _split(numerator, denominator)
    if not rest.terms or is_between(rest, denominator):
        return whole
    if coarse := _coarse(rest, denominator):
        return whole + floor_divide(coarse.numerator, coarse.denominator)
    rest, denominator, _ = _cancel(rest, denominator)
    match rest.terms:
        case (((Quotient(inner, by),), 1),):
            return whole + floor_divide(inner, by * denominator)
    if rest.constant is not None and denominator.constant:
        return whole + rest.constant // denominator.constant
    return whole + (rest if denominator.constant == 1 else atom(Quotient(rest, denominator)))


@remembered
def remainder(numerator: Index | int, denominator: Index | int) -> Index:
    """The remainder of `floor_divide`."""
    numerator, denominator = as_index(numerator), as_index(denominator)
    _, rest = _split(numerator, denominator)
    if not rest.terms or is_between(rest, denominator):
        return rest
    if coarse := _coarse(rest, denominator):
        return remainder(coarse.numerator, coarse.denominator) * coarse.grain + coarse.rest
    rest, denominator, common = _cancel(rest, denominator)
    if rest.constant is not None and denominator.constant:
        return constant(rest.constant % denominator.constant) * common
    return atom(Remainder(rest, denominator)) * common


def maximum(first: Index | int, second: Index | int) -> Index:
    """The larger of two; decided at compile time if it is the same for all sizes."""
    return _extreme_of("max", as_index(first), as_index(second))


def minimum(first: Index | int, second: Index | int) -> Index:
    """The smaller of two; decided at compile time if it is the same for all sizes."""
    return _extreme_of("min", as_index(first), as_index(second))


def _extreme_of(kind: str, first: Index, second: Index) -> Index:
    if is_non_negative(first - second):
        return first if kind == "max" else second
    if is_non_negative(second - first):
        return second if kind == "max" else first
    return atom(Extreme(kind, *sorted((first, second), key=str)))


@remembered
def is_between(value: Index, bound: Index) -> bool:
    """Whether ``0 <= value < bound`` can be proved for all variables and sizes."""
    highest = _extreme(value, upper=True)
    return is_non_negative(value) and highest is not None and _all_non_negative(bound - highest - 1)


@remembered
def is_non_negative(value: Index) -> bool:
    """Whether ``0 <= value`` can be proved for all variables and sizes."""
    lowest = _extreme(value, upper=False)
    return lowest is not None and _all_non_negative(lowest)


def substitute(value: Index, replacements: Mapping[Atom, Index]) -> Index:
    """Replace variables or sizes, simplifying the result."""
    if not any(_mentions(monomial, replacements) for monomial, _ in value.terms):
        return value
    return _sum(
        tuple(
            product([coefficient, *(_substitute_atom(factor, replacements) for factor in monomial)])
            for monomial, coefficient in value.terms
        )
    )


def atoms(value: Index) -> set[Atom]:
    """All variables, sizes, quotients and remainders in `value`, at any depth."""
    found: set[Atom] = set()
    for monomial, _ in value.terms:
        for factor in monomial:
            found.add(factor)
            if isinstance(factor, Computed):
                found |= factor.mentioned
            for part in _parts(factor):
                found |= atoms(part)
    return found


@remembered
def coefficient_of(value: Index, variable: Variable) -> Index | None:
    """The stride of `variable` in `value`; None when `value` is not linear in it."""
    found = constant(0)
    for monomial, number in value.terms:
        others = tuple(factor for factor in monomial if factor != variable)
        if any(variable in atoms(atom(factor)) for factor in others) or len(monomial) - len(others) > 1:
            return None
        if len(others) < len(monomial):
            found = found + _from_terms({others: number})
    return found


def evaluate(value: Index, resolve: Callable[[Symbol | Variable | Computed], int]) -> int:
    """Compute the value; `resolve` returns that of each variable, size and computed subscript (or an array of them)."""
    total = 0
    for monomial, coefficient in value.terms:
        term = coefficient
        for factor in monomial:
            term = term * _evaluate_atom(factor, resolve)
        total = total + term
    return total


def _evaluate_atom(factor: Atom, resolve: Callable[[Symbol | Variable | Computed], int]) -> int:
    if isinstance(factor, Symbol | Variable | Computed):
        return resolve(factor)
    first, second = (evaluate(part, resolve) for part in _parts(factor))
    if isinstance(factor, Extreme):
        # Not with `max`: arrays have no order.
        distance = abs(first - second)
        return (first + second + (distance if factor.kind == "max" else -distance)) // 2
    return first // second if isinstance(factor, Quotient) else first % second


def _parts(factor: Atom) -> tuple[Index, ...]:
    match factor:
        case Quotient(first, second) | Remainder(first, second) | Extreme(_, first, second):
            return first, second
    return ()


def _mentions(monomial: Monomial, replacements: Mapping[Atom, Index]) -> bool:
    return any(factor in replacements or _parts(factor) for factor in monomial)


def _substitute_atom(factor: Atom, replacements: Mapping[Atom, Index]) -> Index:
    if factor in replacements:
        return replacements[factor]
    match factor:
        case Quotient(numerator, denominator):
            return floor_divide(substitute(numerator, replacements), substitute(denominator, replacements))
        case Remainder(numerator, denominator):
            return remainder(substitute(numerator, replacements), substitute(denominator, replacements))
        case Extreme(kind, first, second):
            return _extreme_of(kind, substitute(first, replacements), substitute(second, replacements))
    return atom(factor)


@remembered
def _product(first: Index, second: Index) -> Index:
    products: dict[Monomial, int] = {}
    for left, left_coefficient in first.terms:
        for right, right_coefficient in second.terms:
            monomial = _sorted_monomial(left + right)
            products[monomial] = products.get(monomial, 0) + left_coefficient * right_coefficient
    return _from_terms(products)


@remembered
def _sum(parts: tuple[Index, ...]) -> Index:
    collected: dict[Monomial, int] = {}
    for part in parts:
        for monomial, coefficient in part.terms:
            collected[monomial] = collected.get(monomial, 0) + coefficient
    return _rejoin(_from_terms(collected))


def _rejoin(value: Index) -> Index:
    """Turn ``c*d*(n // d) + c*(n % d)`` back into ``c*n``."""
    for monomial, coefficient in value.terms:
        for factor in monomial:
            if not isinstance(factor, Remainder):
                continue
            others = list(monomial)
            others.remove(factor)
            scale = _from_terms({tuple(others): coefficient})
            partner = scale * factor.denominator * floor_divide(factor.numerator, factor.denominator)
            if partner.terms and set(partner.terms) <= set(value.terms):
                return _sum((value, partner * -1, scale * atom(factor) * -1, scale * factor.numerator))
    return value


def _split(numerator: Index, denominator: Index) -> tuple[Index, Index]:
    """Write `numerator` as ``whole * denominator + rest``; division by 0 is allowed, since only empty loops have it."""
    if denominator.constant == 0:
        return constant(0), constant(0)
    if len(denominator.terms) != 1:
        return (constant(1), constant(0)) if numerator == denominator else (constant(0), numerator)
    ((divisor, number),) = denominator.terms
    whole, rest = constant(0), constant(0)
    for monomial, coefficient in numerator.terms:
        others = _without(monomial, divisor)
        if others is not None and coefficient % number == 0:
            whole = whole + _from_terms({others: coefficient // number})
        else:
            rest = rest + _from_terms({monomial: coefficient})
    return whole, rest


@dataclass(frozen=True)
class _Coarse:
    """A division scaled by `grain`: ``grain * numerator + rest`` by ``grain * denominator``, `rest` below `grain`."""

    grain: Index
    numerator: Index
    denominator: Index
    rest: Index


def _coarse(numerator: Index, denominator: Index) -> _Coarse | None:
    """Drop the part of the numerator below a common factor: ``(i*6 + j) // 12`` is ``i // 2`` for ``j < 6``."""
    if len(denominator.terms) != 1:
        return None
    ((divisor, number),) = denominator.terms
    for monomial, coefficient in numerator.terms:
        common = tuple((Counter(monomial) & Counter(divisor)).elements())
        grain = _from_terms({_sorted_monomial(common): math.gcd(coefficient, number)})
        steps, rest = _split(numerator, grain)
        if grain.constant != 1 and is_between(rest, grain):
            return _Coarse(grain, steps, _split(denominator, grain)[0], rest)
    return None


def _cancel(numerator: Index, denominator: Index) -> tuple[Index, Index, int]:
    """Divide both by their greatest common divisor."""
    numbers = [coefficient for _, coefficient in (*numerator.terms, *denominator.terms)]
    common = math.gcd(*numbers) if numerator.terms else 1
    if common <= 1:
        return numerator, denominator, 1
    return _divide_exactly(numerator, common), _divide_exactly(denominator, common), common


def _divide_exactly(value: Index, number: int) -> Index:
    return Index(tuple((monomial, coefficient // number) for monomial, coefficient in value.terms))


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for factor in divisor:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _extreme(value: Index, *, upper: bool) -> Index | None:
    """The largest (or smallest) value over all loop variables, as an expression of sizes; None when unknown."""
    total = constant(0)
    for monomial, coefficient in value.terms:
        term = constant(coefficient)
        for factor in monomial:
            bound = _atom_extreme(factor, upper=upper == (coefficient > 0))
            if bound is None:
                return None
            term = term * bound
        total = total + term
    return total


def _atom_extreme(factor: Atom, *, upper: bool) -> Index | None:
    match factor:
        case Symbol():
            return atom(factor)
        case Variable(extent=extent) | Computed(extent=extent):
            return extent - 1 if upper else constant(0)
        case Remainder(_, denominator):
            return denominator - 1 if upper else constant(0)
        case Extreme(kind, first, second):
            are_positive = [is_non_negative(first), is_non_negative(second)]
            is_positive = any(are_positive) if kind == "max" else all(are_positive)
            return constant(0) if is_positive and not upper else None
    if not is_non_negative(factor.numerator):
        return None
    if not upper:
        return constant(0)
    highest = _extreme(factor.numerator, upper=True)
    return None if highest is None else floor_divide(highest, factor.denominator)


def _all_non_negative(value: Index) -> bool:
    # Sizes are never negative, so a sum of non-negative multiples of them is not either.
    return all(coefficient >= 0 for _, coefficient in value.terms)


def _from_terms(terms: Mapping[Monomial, int]) -> Index:
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient]
    return Index(tuple(sorted(kept, key=_term_order)))


def _term_order(term: tuple[Monomial, int]) -> tuple[bool, str]:
    # The constant comes last, as is conventional.
    return not term[0], _monomial_text(term[0])


def _sorted_monomial(factors: Monomial) -> Monomial:
    return tuple(sorted(factors, key=lambda factor: factor.text)) if len(factors) > 1 else factors


@remembered
def _monomial_text(monomial: Monomial) -> str:
    return "*".join(factor.text for factor in monomial)


def _factor(value: Index) -> str:
    return str(value) if len(value.terms) == 1 and len(value.terms[0][0]) <= 1 else f"({value})"


def text_with(value: Index, names: Mapping[Computed, str]) -> str:
    """The text of `value`, with these names for its computed subscripts."""
    renamed: dict[Atom, Index] = {each: atom(Symbol(names[each])) for each in value.computed}
    return str(substitute(value, renamed)) if renamed else str(value)


def _text(value: Index) -> str:
    parts: list[str] = []
    for monomial, coefficient in value.terms:
        size = _monomial_text(monomial)
        if abs(coefficient) != 1 or not size:
            size = f"{size}*{abs(coefficient)}" if size else str(abs(coefficient))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(sign + size)
    return "".join(parts) or "0"
