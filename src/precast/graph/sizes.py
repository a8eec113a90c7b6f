"""Symbolic sizes of a program: the symbols, their ranges, and the guards that tracing added."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import sympy

from precast.artifact.calls import size_identifier
from precast.graph.tensor_spec import Size

LEAST_NUMBER = -(2**63)
"""The lower bound of a symbolic integer argument; sizes start at 0."""


@dataclass(frozen=True)
class SizeRange:
    """The allowed sizes, both ends included; ``upper=None`` is unbounded."""

    lower: int = 0
    upper: int | None = None

    def __contains__(self, size: int) -> bool:
        return self.lower <= size and (self.upper is None or size <= self.upper)

    def __str__(self) -> str:
        lower = "" if self.lower == LEAST_NUMBER else self.lower
        return f"{lower}..{'' if self.upper is None else self.upper}"


@dataclass(frozen=True)
class SizeSymbol:
    """One free size: its symbol in the graph, the user's name for it, where it first appears, its range."""

    symbol: sympy.Symbol
    name: str
    seen_at: str
    range: SizeRange

    @property
    def identifier(self) -> str:
        """The name as an identifier: ``batch``, ``x_dim_0`` for ``x.shape[0]``."""
        return size_identifier(self.name)


@dataclass(frozen=True)
class SizeGuard:
    """A condition on the sizes that tracing assumed, with the user's line that caused it."""

    condition: sympy.Basic
    at: str | None = None


@dataclass(frozen=True)
class SymbolicSizes:
    """Every size symbol of a program and every condition under which the program is valid."""

    symbols: tuple[SizeSymbol, ...] = ()
    guards: tuple[SizeGuard, ...] = ()

    @cached_property
    def _words(self) -> Mapping[str, str]:
        named = [each.name for each in self.symbols]
        return {str(s.symbol): s.name for s in self.symbols if s.name.isidentifier() and named.count(s.name) == 1}

    def in_words(self, text: object) -> str:
        """The text with symbols (``f32[s5, 4]``) replaced by the user's names (``f32[batch, 4]``)."""
        return re.sub(r"[^\W\d]\w*", lambda word: self._words.get(word[0], word[0]), str(text))

    def ranges_text(self) -> list[str]:
        """Each size with its range: ``batch in 1..64``; with its symbol if printed programs show the symbol."""
        shown = {each: self.in_words(each.symbol) for each in self.symbols}
        return [f"{'' if shown[s] == s.name else f'{s.symbol} = '}{s.name} in {s.range}" for s in self.symbols]

    def settled(self, specialized: Mapping[str, sympy.Expr]) -> "SymbolicSizes":
        """Without the sizes that were specialized to numbers or to expressions over others, and trivial guards."""
        replaced = {symbol.symbol: specialized[symbol.name] for symbol in self.symbols if symbol.name in specialized}
        symbols = tuple(symbol for symbol in self.symbols if symbol.name not in specialized)
        guards = {guard.condition.xreplace(replaced): guard.at for guard in reversed(self.guards)}
        kept = [SizeGuard(condition, at) for condition, at in guards.items() if condition is not sympy.true]
        return SymbolicSizes(symbols, tuple(reversed(kept)))

    def with_guards(self, guards: Iterable[SizeGuard]) -> "SymbolicSizes":
        """These sizes under further guards; guards on symbols that are gone are dropped."""
        symbols = {symbol.symbol for symbol in self.symbols}
        known = {guard.condition for guard in self.guards}
        new = {g.condition: g for g in guards if g.condition not in known and g.condition.free_symbols <= symbols}
        return replace(self, guards=(*self.guards, *new.values())) if new else self

    def failing_guards(self, binding: Mapping[sympy.Symbol, int]) -> list[SizeGuard]:
        """The guards that do not hold for these sizes; guards on unbound symbols are skipped."""
        known = [guard for guard in self.guards if guard.condition.free_symbols <= binding.keys()]
        return [guard for guard in known if not holds(guard.condition, binding)]

    def out_of_range(self, binding: Mapping[sympy.Symbol, int]) -> list[tuple[SizeSymbol, int]]:
        """The bound symbols whose size is outside their range, with that size."""
        bound = [(symbol, binding[symbol.symbol]) for symbol in self.symbols if symbol.symbol in binding]
        return [(symbol, size) for symbol, size in bound if size not in symbol.range]


def evaluate(size: Size, binding: Mapping[sympy.Symbol, int]) -> int:
    """The value of an expression over size symbols."""
    return size if isinstance(size, int) else int(size.xreplace(as_sympy(binding)))


def _whole(size: Size, binding: Mapping[sympy.Symbol, int]) -> int | None:
    """The value of an expression; None if it divides by zero or is not an integer."""
    if isinstance(size, int):
        return size
    try:
        number = size.xreplace(as_sympy(binding))
    except ZeroDivisionError:
        return None
    return int(number) if number.is_Integer else None


def holds(condition: sympy.Basic, binding: Mapping[sympy.Symbol, int]) -> bool:
    """Whether a condition over size symbols is true for these sizes; one that divides by zero is not."""
    try:
        return bool(condition.xreplace(as_sympy(binding)))
    except ZeroDivisionError:
        return False


def as_sympy(binding: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol: sympy.Integer(size) for symbol, size in binding.items()}


def bind_sizes(
    expected: Iterable[Sequence[Size]], actual: Iterable[Sequence[int]]
) -> tuple[dict[sympy.Symbol, int], list[tuple[int, int, int | None, int]]]:
    """Bind the size symbols from real shapes.

    Returns the binding, and the mismatches as (tensor, dimension, expected, came). A dimension that is an expression
    of one symbol (``2*s0``) binds it too, if no bare dimension does; ``expected=None``: no integer solves it.
    """
    pairs = [
        (tensor, dimension, size, came)
        for tensor, (shape, sizes) in enumerate(zip(expected, actual, strict=True))
        for dimension, (size, came) in enumerate(zip(shape, sizes, strict=True))
    ]
    binding: dict[sympy.Symbol, int] = {}
    for _, _, size, came in pairs:
        if isinstance(size, sympy.Symbol):
            binding.setdefault(size, came)
    mismatches: list[tuple[int, int, int | None, int]] = []
    for tensor, dimension, size, came in pairs:
        if not isinstance(size, int) and not size.free_symbols <= binding.keys():
            solved = _solve(size, came, binding)
            if solved is None:
                mismatches.append((tensor, dimension, None, came))
                continue
            binding |= solved
        wanted = _whole(size, binding)
        if wanted != came:
            mismatches.append((tensor, dimension, wanted, came))
    return binding, mismatches


def _solve(size: sympy.Expr, came: int, binding: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, int] | None:
    """Solve a linear expression for its one unbound symbol."""
    remaining = size.xreplace(as_sympy(binding))
    if len(remaining.free_symbols) != 1:
        return None
    (symbol,) = remaining.free_symbols
    start, following = (_whole(remaining, {symbol: each}) for each in (0, 1))
    if start is None or following is None or following == start or (came - start) % (following - start):
        return None
    answer = (came - start) // (following - start)
    return {symbol: answer} if _whole(remaining, {symbol: answer}) == came else None
