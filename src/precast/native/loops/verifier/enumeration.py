"""Addresses of accesses as concrete numbers, where no proof was found.

Dynamic sizes take their traced values: what is illegal for these is illegal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from precast.native.loops.index import Computed, Index, Symbol, Variable, atoms, evaluate
from precast.native.loops.scalars import Apply, Constant, IndexValue, Named, Scalar, conjuncts, walk

MOST_POINTS = 1 << 18
"""Loops of more iterations are not enumerated."""
SAMPLES = (8, 12, 64, 30, 7, 16)
"""Values to try for sizes without a traced value: what is illegal for every choice is illegal."""

Numbers = numpy.ndarray[Any, Any]
Sizes = Mapping[str, int]


class TooLargeError(Exception):
    """There are more iterations than are worth enumerating."""


def indices_in(condition: Scalar | None) -> list[Index]:
    """The expressions that a condition compares."""
    return [] if condition is None else [each.index for each in walk(condition) if isinstance(each, IndexValue)]


def symbols_in(indices: Iterable[Index]) -> list[str]:
    """The names of the dynamic sizes in them."""
    return sorted({each.name for index in indices for each in atoms(index) if isinstance(each, Symbol)})


def sample_sizes(symbols: Sequence[str], examples: Sizes) -> Iterator[Sizes]:
    """Choices of dynamic sizes: the traced values; for sizes without one, all equal and then all different."""
    known = {name: examples[name] for name in symbols if name in examples}
    unknown = [name for name in symbols if name not in examples]
    if not unknown:
        yield known
        return
    for each in SAMPLES:
        yield known | dict.fromkeys(unknown, each)
    for turn in range(len(SAMPLES)):
        yield known | {name: SAMPLES[(turn + number) % len(SAMPLES)] for number, name in enumerate(unknown)}


class Grid:
    """All values of some variables at once: each result has one axis for each variable."""

    def __init__(self, variables: Sequence[Variable], sizes: Sizes):
        self.sizes = sizes
        self.variables = tuple(dict.fromkeys(variables))
        self.extents = [max(0, self.number(each.extent)) for each in self.variables]
        if math.prod(self.extents) > MOST_POINTS:
            raise TooLargeError
        axes = numpy.indices(self.extents, dtype=numpy.int64, sparse=True) if self.extents else []
        self.values = dict(zip(self.variables, axes, strict=True))

    def number(self, index: Index) -> int:
        return evaluate(index, self._size)

    def _size(self, atom: Symbol | Variable | Computed) -> int:
        assert isinstance(atom, Symbol), f"{atom.text} is not a size"
        return self.sizes[atom.name]

    def numbers(self, index: Index) -> Numbers:
        """The expression's value in every iteration."""

        def resolve(atom: Symbol | Variable | Computed) -> Any:
            return self.values[atom] if isinstance(atom, Variable) else self._size(atom)

        return numpy.broadcast_to(numpy.asarray(evaluate(index, resolve), dtype=numpy.int64), self.extents)

    def holds(self, condition: Scalar | None) -> Numbers:
        """Where a condition may hold: comparisons of data are assumed true."""
        result = numpy.ones(self.extents, dtype=bool)
        for each in conjuncts(condition):
            result = result & self._holds(each)
        return result

    def _holds(self, condition: Scalar) -> Numbers:
        match condition:
            case Constant(value):
                return numpy.full(self.extents, bool(value))
            case Named(_, value):
                return self._holds(value)
            case Apply("logical_or", (first, second)):
                return self._holds(first) | self._holds(second)
            case Apply("logical_and", (first, second)):
                return self._holds(first) & self._holds(second)
            case Apply(operation, (IndexValue(left), IndexValue(right))) if operation in _RELATIONS:
                if not left.computed and not right.computed:
                    compared: Numbers = _RELATIONS[operation](self.numbers(left), self.numbers(right))
                    return compared
        return numpy.ones(self.extents, dtype=bool)


_RELATIONS = {
    "eq": numpy.equal, "ge": numpy.greater_equal, "gt": numpy.greater, "le": numpy.less_equal, "lt": numpy.less,
    "ne": numpy.not_equal,
}  # fmt: skip
