"""Every load and store is inside its buffer, for all values of its variables and sizes.

Also: types agree, and accumulators are used by and after the loops that declare them.
"""

from __future__ import annotations

from collections.abc import Iterator

from precast.native.loops.index import Atom, Computed, Index, Variable, atom, atoms, substitute
from precast.native.loops.program import Kernel, Loop, Statement, Store
from precast.native.loops.scalars import Accumulator, Apply, Cast, Constant, IndexValue, Load, Named, Scalar, conjuncts
from precast.native.loops.verifier.accesses import Access, accesses_of
from precast.native.loops.verifier.enumeration import Grid, Sizes, TooLargeError, indices_in, sample_sizes, symbols_in
from precast.native.loops.verifier.proofs import facts_of, is_proved


def outside(kernel: Kernel, examples: Sizes) -> Iterator[str]:
    """Accesses outside of their buffers, or at computed subscripts without a guard."""
    for access in accesses_of(kernel):
        if len(access.what.indices) != len(access.buffer.shape):
            yield f"{access} has {len(access.what.indices)} subscripts for {len(access.buffer.shape)} dimensions"
            continue
        loose = {each for index in access.what.indices for each in atoms(index) if isinstance(each, Variable)}
        if loose := loose - set(access.variables):
            yield f"{access} uses {', '.join(sorted(each.name for each in loose))} outside of any such loop"
            continue
        for dim, (index, size) in enumerate(zip(access.what.indices, access.buffer.shape, strict=True)):
            yield from _outside(access, dim, index, size, examples)


def _outside(access: Access, dim: int, index: Index, size: Index, examples: Sizes) -> Iterator[str]:
    guard = access.what.guard
    for each in index.computed:
        if not each.is_certain and not _is_guarded(each, guard):
            yield f"{access}: nothing keeps {each.name} below {each.extent}"
    facts = facts_of(guard)
    is_inside = is_proved(index, facts) and is_proved(size - index - 1, facts)
    if not is_inside and _is_ever_outside(access, index, size, examples):
        yield f"{access} leaves dimension {dim}, which has size {size}"


def _is_ever_outside(access: Access, index: Index, size: Index, examples: Sizes) -> bool:
    """Whether some iteration is out of bounds in a dimension, for every choice of dynamic sizes."""
    index = over_ranges(index)
    parts = [index, *indices_in(access.what.guard)]
    variables = [each for part in parts for each in atoms(part) if isinstance(each, Variable)]
    symbols = symbols_in([*parts, size, *(one.extent for one in variables)])
    found = False
    for sizes in sample_sizes(symbols, examples):
        try:
            grid = Grid(variables, sizes)
        except TooLargeError:
            continue
        numbers = grid.numbers(index)
        wrong = ((numbers < 0) | (numbers >= grid.number(size))) & grid.holds(access.what.guard)
        if not wrong.any():
            return False
        found = True
    return found


def over_ranges(index: Index) -> Index:
    """The index with each data-dependent subscript replaced by a variable over its whole range."""
    stand_ins: dict[Atom, Index] = {each: atom(Variable(f"{each.name}?", each.extent)) for each in index.computed}
    return substitute(index, stand_ins)


def _is_guarded(subscript: Computed, guard: Scalar | None) -> bool:
    """Whether the guard implies that the subscript's value is in range."""
    is_above, is_below = False, False
    for each in conjuncts(guard):
        match each:
            case Apply("ge", (value, Constant(0))):
                is_above = is_above or _is_same(value, subscript.value, guard)
            case Apply("lt", (value, IndexValue(limit))):
                is_below = is_below or (limit == subscript.extent and _is_same(value, subscript.value, guard))
    return is_above and is_below


def _is_same(first: Scalar, second: Scalar, given: Scalar | None) -> bool:
    """Whether two scalars are structurally equal, up to loads that are guarded where `given` holds."""
    known = {id(each) for each in (given, *conjuncts(given))}
    first, second = _where(known, first), _where(known, second)
    if first is second:
        return True
    match first, second:
        case Load(mine, indices), Load(other, others):
            guards = {id(each) for load in (first, second) for each in conjuncts(load.guard)}
            return (mine, indices) == (other, others) and guards <= known
        case Constant(number), Constant(other_number):
            return number == other_number
        case IndexValue(index), IndexValue(other_index):
            return index == other_index
        case Apply(operation, arguments), Apply(other_operation, other_arguments):
            pairs = zip(arguments, other_arguments, strict=True)
            return operation == other_operation and all(_is_same(*pair, given) for pair in pairs)
        case Cast(value, dtype), Cast(other_value, other_dtype):
            return dtype == other_dtype and _is_same(value, other_value, given)
    return False


def _where(known: set[int], value: Scalar) -> Scalar:
    """What a value simplifies to where the conditions in `known`, by identity, hold."""
    while True:
        match value:
            case Named(_, inner):
                value = inner
            case Apply("where", (condition, chosen, _)) if {id(each) for each in conjuncts(condition)} <= known:
                value = chosen
            case _:
                return value


def misused(kernel: Kernel, examples: Sizes) -> Iterator[str]:
    """Values of a wrong type, and accumulators in a wrong place."""
    yield from _misused(kernel.body, frozenset(), set())


def _misused(
    body: tuple[Statement, ...], collecting: frozenset[Accumulator], finished: set[Accumulator]
) -> Iterator[str]:
    """`collecting` are the accumulators of enclosing loops; `finished`, those of loops that have ended."""
    finished = set(finished)
    for statement in body:
        if isinstance(statement, Loop):
            yield from _misused(statement.body, collecting.union(statement.accumulators), finished)
            finished.update(statement.accumulators)
            continue
        for each in statement.accumulated:
            if each not in finished:
                yield f"{each.name} is used before its loop has ended"
        if isinstance(statement, Store):
            buffer = statement.buffer
            if statement.value.dtype != buffer.dtype:
                yield f"{statement.value.dtype} is stored into {buffer.name}, which holds {buffer.dtype}"
            continue
        if statement.accumulator not in collecting:
            yield f"{statement.accumulator.name} is not of a loop around it"
        if statement.value.dtype != statement.accumulator.dtype:
            yield f"{statement.value.dtype} is added to {statement.accumulator.name}, of {statement.accumulator.dtype}"
