"""Within a kernel, iterations run in any order: none accesses what another writes, or reads what is not yet written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Atom, Index, Variable, atom, atoms, constant, substitute
from precast.native.loops.memoize import remembered
from precast.native.loops.program import Kernel, Store
from precast.native.loops.verifier.accesses import Access, accesses_of, fills, is_injective
from precast.native.loops.verifier.bounds import over_ranges
from precast.native.loops.verifier.enumeration import (
    Grid,
    Numbers,
    Sizes,
    TooLargeError,
    indices_in,
    sample_sizes,
    symbols_in,
)

MOST_MARKS = 1 << 26
"""Numbers below this are marked in a table; larger ones are sorted."""


def conflicts(kernel: Kernel, examples: Sizes) -> Iterator[str]:
    """Elements that one iteration writes and another one accesses."""
    for buffer in kernel.written:
        mine = [each for each in accesses_of(kernel) if each.buffer == buffer]
        stores = [each for each in mine if isinstance(each.what, Store) and each.what.is_plain]
        for store in stores:
            if not is_injective(store.offset, store.variables) and _conflict(store, store, store.variables, examples):
                yield f"{store} is written in more than one iteration"
            for other in mine:
                shared = tuple(variable for loop in store.loops_with(other) for variable in loop.variables)
                if (
                    other is not store
                    and not _are_disjoint(store, other, shared)
                    and _conflict(store, other, shared, examples)
                ):
                    yield f"one iteration writes {store}, another one {'writes' if other.is_store else 'reads'} {other}"


def unwritten(kernel: Kernel, known: frozenset[Buffer], examples: Sizes) -> Iterator[str]:
    """Elements that are read before the kernel itself writes them; `known` are the buffers written before it."""
    made = [each for each in kernel.written if each not in known]
    accesses = accesses_of(kernel)
    for buffer in made:
        stores = [each for each in accesses if each.buffer == buffer and each.is_store]
        for load in (each for each in accesses if each.buffer == buffer and not each.is_store):
            before = [each for each in stores if each.place < load.place]
            if not any(_feeds(store, load) for store in before) and not _feed_together(before, load, examples):
                yield f"{load} is read before it is written"


def fully_written(kernel: Kernel, buffer: Buffer, examples: Sizes) -> bool:
    """Whether the kernel writes every element of a buffer, as far as can be determined."""
    stores = [each for each in accesses_of(kernel) if each.buffer == buffer and each.is_store]
    plain = [each for each in stores if isinstance(each.what, Store) and each.what.is_plain]
    return any(map(fills, plain)) or _fill_together(plain, buffer, examples)


def _are_disjoint(store: Access, other: Access, shared: Sequence[Variable]) -> bool:
    """Whether it was proved that different iterations of the loops around both access different elements.

    The dimensions in which both have the same subscript, of shared variables alone, determine the iteration; where both
    have different constants, they never conflict.
    """
    pairs = list(zip(store.what.indices, other.what.indices, strict=True))
    are_elsewhere = any(None not in (mine.constant, others.constant) and mine != others for mine, others in pairs)
    if are_elsewhere and _has_own_places(store.buffer):
        return True
    ranges, decided, offset = (*store.variables, *other.variables), set[Variable](), constant(0)
    for (mine, others), stride in zip(pairs, store.buffer.strides, strict=True):
        if mine == others and not mine.computed and (variables := _variables_in(mine)) <= set(shared):
            offset = offset + mine * stride
            decided |= variables if is_injective(mine, sorted(variables, key=lambda one: one.name), ranges) else set()
    are_distinct = all(each in decided or each.extent == constant(1) for each in shared)
    return are_distinct or is_injective(offset, shared, ranges)


@remembered
def _has_own_places(buffer: Buffer) -> bool:
    """Whether no two elements of a buffer share memory, as they do where it is broadcast."""
    dims = [Variable(f"d{dim}", size) for dim, size in enumerate(buffer.shape)]
    return is_injective(buffer.offset(tuple(map(atom, dims))), dims)


@remembered
def _variables_in(index: Index) -> frozenset[Variable]:
    return frozenset(each for each in atoms(index) if isinstance(each, Variable))


def _feeds(store: Access, load: Access) -> bool:
    """Whether it was proved that a store wrote all that a load reads in the same iteration of the shared loops."""
    if not (isinstance(store.what, Store) and store.what.is_plain):
        return False
    if store.what.indices == load.what.indices and _is_inside(store, load):
        return True
    if not store.loops_with(load) and fills(store):
        return True
    bindings = _same_ranges(store, load)
    mine = tuple(substitute(index, bindings) for index in load.what.indices)
    return mine == store.what.indices


def _is_inside(store: Access, load: Access) -> bool:
    """Whether all loops around the store are also around the load."""
    return len(store.loops_with(load)) == len(store.loops)


def _same_ranges(store: Access, load: Access) -> dict[Atom, Index]:
    """Maps the load's own variables to those of the store along the same dimension and range."""
    shared = {variable for loop in store.loops_with(load) for variable in loop.variables}
    bindings: dict[Atom, Index] = {}
    for written, read in zip(store.what.indices, load.what.indices, strict=True):
        match written.terms, read.terms:
            case (((Variable() as mine,), 1),), (((Variable() as other,), 1),):
                if mine.extent == other.extent and mine not in shared and other not in shared:
                    bindings.setdefault(other, atom(mine))
    return bindings


def _symbols(accesses: Sequence[Access], places: Sequence[Index] = ()) -> list[str]:
    parts = [each.offset for each in accesses] + [one.extent for each in accesses for one in each.variables]
    parts += [one.extent for place in places for one in _variables_in(place)]
    parts += [size for each in accesses for size in (*each.buffer.shape, *each.buffer.strides)]
    return symbols_in([*parts, *(index for each in accesses for index in indices_in(each.what.guard))])


def _conflict(store: Access, other: Access, shared: Sequence[Variable], examples: Sizes) -> bool:
    """Whether two iterations of the shared variables conflict, for every choice of dynamic sizes.

    Where some subscripts are data-dependent, the others, or their ranges, may still separate the accesses.
    """
    if not (other.offset.computed or store.offset.computed):
        return _conflict_along(store, store.offset, other, other.offset, shared, examples)
    return _conflict_without_data(store, other, shared, examples) and _conflict_along(
        store, over_ranges(store.offset), other, over_ranges(other.offset), shared, examples, unknown=True
    )


def _conflict_without_data(store: Access, other: Access, shared: Sequence[Variable], examples: Sizes) -> bool:
    """Whether they conflict in the dimensions whose subscripts are not data-dependent."""
    written, touched = constant(0), constant(0)
    for mine, others, size in zip(store.what.indices, other.what.indices, store.buffer.shape, strict=True):
        if not (mine.computed or others.computed):
            written, touched = written * size + mine, touched * size + others
    return _conflict_along(store, written, other, touched, shared, examples)


def _conflict_along(
    store: Access,
    written: Index,
    other: Access,
    touched: Index,
    shared: Sequence[Variable],
    examples: Sizes,
    *,
    unknown: bool = False,
) -> bool:
    """Whether the accesses conflict at these offsets, for every choice of sizes; `unknown` if there are too many."""
    found = False
    for sizes in sample_sizes(_symbols([store, other], [written, touched]), examples):
        try:
            is_met = _conflicts_at(store, written, other, touched, shared, sizes)
        except TooLargeError:
            if not unknown:
                continue
            is_met = True
        if not is_met:
            return False
        found = True
    return found


def _conflicts_at(
    store: Access, place: Index, other: Access, others_place: Index, shared: Sequence[Variable], sizes: Sizes
) -> bool:
    mine, others = (
        Grid((*access.variables, *_variables_in(index)), sizes)
        for access, index in ((store, place), (other, others_place))
    )
    # Where a guard prevents an access, its offset may be anything.
    held, seen = mine.holds(store.what.guard).ravel(), others.holds(other.what.guard).ravel()
    written, touched = mine.numbers(place).ravel()[held], others.numbers(others_place).ravel()[seen]
    if not written.size or not touched.size:
        return False
    first = min(written.min(), touched.min())
    owner = numpy.full(max(written.max(), touched.max()) + 1 - first, -1, dtype=numpy.int64)
    numbers = _iteration(mine, shared)[held]
    owner[written - first] = numbers
    if (owner[written - first] != numbers).any():
        return True
    owners, own = owner[touched - first], _iteration(others, shared)[seen]
    if other is store:
        return len(numpy.unique(written)) < len(written)
    return bool(((owners >= 0) & (owners != own)).any())


def _iteration(grid: Grid, shared: Sequence[Variable]) -> Numbers:
    """A distinct number for each iteration of the shared variables."""
    number = constant(0)
    for variable in shared:
        number = number * variable.extent + atom(variable)
    return grid.numbers(number).ravel()


def _feed_together(stores: Sequence[Access], load: Access, examples: Sizes) -> bool:
    """Whether stores wrote everything that a load reads, for some choice of dynamic sizes; True if that is unknown.

    Elements that an empty loop would write need not be written if they are not read either.
    """
    accesses = [*stores, load]
    if any(each.offset.computed for each in accesses):
        return any(isinstance(each.what, Store) and each.what.is_plain for each in stores)
    for sizes in sample_sizes(_symbols(accesses), examples):
        try:
            if _is_fed(stores, load, sizes):
                return True
        except TooLargeError:
            return bool(stores)
    return False


def _is_fed(stores: Sequence[Access], load: Access, sizes: Sizes) -> bool:
    reading = Grid(load.variables, sizes)
    missing = reading.holds(load.what.guard).ravel().copy()
    read = reading.numbers(load.offset).ravel()
    # The last store is the most likely source.
    for store in reversed(stores):
        if not missing.any():
            break
        shared = [variable for loop in store.loops_with(load) for variable in loop.variables]
        writing = Grid(store.variables, sizes)
        held = writing.holds(store.what.guard).ravel()
        written = writing.numbers(store.offset).ravel()[held]
        first = min(written.min(initial=0), read.min(initial=0))
        width = max(written.max(initial=0), read.max(initial=0)) - first + 1
        # An iteration and an offset, combined into one number.
        made = _iteration(writing, shared)[held] * width + (written - first)
        wanted = _iteration(reading, shared)[missing] * width + (read[missing] - first)
        missing[missing] = ~_are_among(wanted, made)
    return not missing.any()


def _are_among(wanted: Numbers, made: Numbers) -> Numbers:
    """Which of some non-negative numbers are among others."""
    last = max(wanted.max(initial=0), made.max(initial=0))
    if last >= MOST_MARKS:
        return numpy.isin(wanted, made)
    # Untouched memory of the table costs nothing, sorting does.
    marks = numpy.zeros(last + 1, dtype=bool)
    marks[made] = True
    return marks[wanted]


def _fill_together(stores: Sequence[Access], buffer: Buffer, examples: Sizes) -> bool:
    """Whether stores together write all elements, for some choice of dynamic sizes; True if that is unknown."""
    if not stores:
        return False
    for sizes in sample_sizes(_symbols(stores), examples):
        try:
            dims = [Variable(f"d{dim}", size) for dim, size in enumerate(buffer.shape)]
            everything = Grid(dims, sizes).numbers(buffer.offset(tuple(map(atom, dims)))).ravel()
            written = [Grid(each.variables, sizes).numbers(each.offset).ravel() for each in stores]
        except TooLargeError:
            return True
        if numpy.isin(everything, numpy.concatenate(written)).all():
            return True
    return False
