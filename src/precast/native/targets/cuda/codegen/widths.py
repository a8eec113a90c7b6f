"""Whether the subscripts of a kernel fit 32 bits, in which a GPU computes faster."""

from __future__ import annotations

from precast.native.loops.index import Atom, Computed, Extreme, Index, Quotient, Remainder, Variable, product
from precast.native.loops.program import Kernel, Loop, loads_of, statements_of, stores_of, values_of
from precast.native.loops.scalars import IndexValue, walk

_LARGE = 2**31 - 2**16
"""Less than the largest number of 32 bits: lanes of the last block are past the end."""


def needs_64_bits(kernel: Kernel) -> bool:
    """Whether iteration numbers, offsets in tensors, or numbers computed from them may exceed 32 bits."""
    indices = [load.buffer.offset(load.indices) for load in loads_of(kernel.body)]
    indices += [store.buffer.offset(store.indices) for store in stores_of(kernel.body)]
    indices += [value.index for value in walk(*values_of(kernel.body)) if isinstance(value, IndexValue)]
    loops = [each for each in statements_of(kernel.body) if isinstance(each, Loop)]
    counts = [product(variable.extent for variable in loop.variables) for loop in loops]
    sizes = [*map(_magnitude, indices), *(each.constant for each in counts)]
    return any(each is None or each > _LARGE for each in sizes)


def _magnitude(index: Index) -> int | None:
    """A bound of an index and of all that is computed on the way to it; None if sizes are dynamic."""
    total = 0
    for monomial, coefficient in index.terms:
        term = abs(coefficient)
        for factor in monomial:
            size = _atom_magnitude(factor)
            if size is None:
                return None
            term *= size
        total += term
    return total


def _atom_magnitude(factor: Atom) -> int | None:
    match factor:
        case Variable() | Computed():
            return factor.extent.constant
        case Quotient(numerator) | Remainder(numerator):
            return _magnitude(numerator)
        case Extreme(_, first, second):
            sizes = _magnitude(first), _magnitude(second)
            return None if None in sizes else max(each for each in sizes if each is not None)
    return None
