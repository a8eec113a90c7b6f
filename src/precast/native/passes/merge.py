"""Loop fusion: run loops over the same range as one loop.

Before::

    for i0 < 8, i1 < 6:  add[i0, i1] = …
    for i0 < 8, i1 < 6:  total <- sum f(add[i0, i1])

After::

    for i0 < 8, i1 < 6:  add[i0, i1] = …;  total <- sum f(add)

Nests merge from the outside in, as far as ranges agree and each iteration reads only what the same iteration wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import (
    Index,
    Variable,
    atom,
    atoms,
    coefficient_of,
    constant,
    floor_divide,
    is_between,
    remainder,
)
from precast.native.loops.memoize import remembered
from precast.native.loops.program import (
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    accumulated_in,
    declared_in,
    loads_of,
    read_by,
    stores_of,
    variables_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import number_variables, rename_variables, substitution
from precast.native.loops.scalars import Load, Scalar, rewrite
from precast.native.passes.collapse import divides, split_variable


def merge_kernels(program: LoopProgram) -> LoopProgram:
    """Merge each kernel with an earlier one that it shares data with, where dependencies allow it."""
    before, refused = len(program.steps) + 1, set[tuple[Kernel, Kernel]]()
    # A merged kernel may now merge with another.
    while len(program.steps) < before:
        before, order = len(program.steps), _Order()
        for step in program.steps:
            if not (isinstance(step, Kernel) and _merge_into_earlier(step, order, refused)):
                order.append(step)
        program = with_steps(program, list(order.steps.values()))
    # Only now: a kernel that many others are merged into would otherwise be rebuilt each time.
    return with_steps(program, [number_variables(step) if isinstance(step, Kernel) else step for step in program.steps])


class _Order:
    """The steps so far, each under an increasing number, and the steps that access each buffer."""

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self._next = 0
        self._touched_by: dict[Buffer, dict[int, None]] = {}
        self._last_read: dict[Buffer, int] = {}
        self._last_written: dict[Buffer, int] = {}

    def append(self, step: Step) -> None:
        self._next += 1
        self.put(self._next, step)

    def put(self, number: int, step: Step) -> None:
        self.steps[number] = step
        for buffers, last in ((read_by(step), self._last_read), (written_by(step), self._last_written)):
            for buffer in buffers:
                last[buffer] = max(number, last.get(buffer, 0))
                # Reading one scalar again is free: sharing it is no reason to merge.
                if last is self._last_written or not buffer.is_one_number:
                    self._touched_by.setdefault(buffer, {})[number] = None

    def touching(self, buffers: Iterable[Buffer]) -> list[int]:
        """The numbers of steps that share data with one that reads `buffers`, the latest first."""
        numbers = {number for buffer in buffers for number in self._touched_by.get(buffer, ())}
        return sorted(numbers & self.steps.keys(), reverse=True)

    def may_move_up(self, kernel: Kernel, number: int) -> bool:
        """Whether no step after this one writes what the kernel reads."""
        return all(self._last_written.get(buffer, 0) <= number for buffer in kernel.read)

    def may_move_down(self, number: int) -> bool:
        """Whether no step after this one reads what this one writes."""
        return all(self._last_read.get(buffer, 0) <= number for buffer in written_by(self.steps[number]))


def _merge_into_earlier(kernel: Kernel, order: _Order, refused: set[tuple[Kernel, Kernel]]) -> bool:
    """Merge with the last step that allows it, at that step's place or here at the end, as dependencies allow.

    `refused` are pairs already known not to merge.
    """
    for number in order.touching(kernel.read):
        earlier = order.steps[number]
        if not isinstance(earlier, Kernel) or (earlier, kernel) in refused:
            continue
        may_move_down = order.may_move_down(number)
        if not may_move_down and not order.may_move_up(kernel, number):
            continue
        merged = _merged(earlier, kernel)
        if merged is None:
            refused.add((earlier, kernel))
        elif may_move_down:
            del order.steps[number]
            order.append(merged)
            return True
        else:
            order.put(number, merged)
            return True
    return False


def _merged(first: Kernel, second: Kernel) -> Kernel | None:
    # The smaller one is rebuilt: all variables are renamed in the end.
    is_first_smaller = len(first.read) < len(second.read)
    body = _with_distinct_names(first, second) if is_first_smaller else first.body
    for statement in second.body if is_first_smaller else _with_distinct_names(second, first):
        if isinstance(statement, Loop):
            joined = _join_loop(body, statement)
            if joined is None:
                return None
            body = joined
        else:
            body = (*body, statement)
    if len(body) == len(first.body) + len(second.body):
        return None
    name = first.name if first.name == second.name else f"{first.name}_{second.name}"
    return Kernel(name, body, tuple(dict.fromkeys((*first.origins, *second.origins))))


def _with_distinct_names(kernel: Kernel, other: Kernel) -> tuple[Statement, ...]:
    """The kernel's body, with loop variables renamed so that they differ from those of the other."""
    # Both pieces of a split variable carry its name.
    taken = {each.name.partition(".")[0] for each in variables_of(other.body)}
    free = (name for number in count() if (name := f"i{number}") not in taken)
    return rename_variables(
        kernel.body, {each: Variable(next(free), each.extent) for each in dict.fromkeys(variables_of(kernel.body))}
    )


def _join_loop(body: tuple[Statement, ...], loop: Loop) -> tuple[Statement, ...] | None:
    """Merge `loop` into the last loop of `body` that allows it, without reordering dependent statements."""
    for position in reversed(range(len(body))):
        candidate = body[position]
        if isinstance(candidate, Loop):
            merged = _merge_loops(candidate, loop)
            if merged is not None:
                return (*body[:position], merged, *body[position + 1 :])
        if _depends((loop,), (candidate,)):
            return None
    return None


def _depends(later: tuple[Statement, ...], earlier: tuple[Statement, ...]) -> bool:
    written = {store.buffer for store in stores_of(earlier)}
    touched = {*(load.buffer for load in loads_of(later)), *(store.buffer for store in stores_of(later))}
    if written & touched:
        return True
    return not declared_in(earlier).isdisjoint(accumulated_in(later))


def _merge_loops(first: Loop, second: Loop) -> Loop | None:
    if not all(store.is_plain for store in stores_of((first, second))):
        # Iterations that write the same element have an order to keep.
        return None
    whole = first, second
    if _reads_from(second, first):
        first, second = _aligned(first, second)
    length = _common_prefix(first, second)
    if not all(map(_stays_contiguous, whole, (first, second), (length, length))):
        return None
    while length and not _reads_own_iteration(first, second, length):
        length -= 1
    if length and not _reads_from(second, first) and not _read_alike(first, second, length):
        return None
    has_accumulators = first.accumulators or second.accumulators
    if length == 0 or (has_accumulators and not length == len(first.variables) == len(second.variables)):
        return None
    left, right = _with_common_variables(_peel(first, length), _peel(second, length))
    body = left.body
    for statement in right.body:
        joined = _join_loop(body, statement) if isinstance(statement, Loop) else None
        body = (*body, statement) if joined is None else joined
    return Loop(left.variables, body, first.accumulators + second.accumulators)


def _with_common_variables(first: Loop, second: Loop) -> tuple[Loop, Loop]:
    """Two loops of one range, rewritten over the same variables; the smaller is rebuilt."""
    smaller, larger = (first, second) if len(first.loads) < len(second.loads) else (second, first)
    (renamed,) = rename_variables((smaller,), dict(zip(smaller.variables, larger.variables, strict=True)))
    assert isinstance(renamed, Loop)
    return (renamed, larger) if smaller is first else (larger, renamed)


def _stays_contiguous(loop: Loop, aligned: Loop, length: int) -> bool:
    """Whether a loop still iterates contiguously once its first variables, some of them perhaps split, are shared."""
    if _across(loop) is not None:
        # The whole loop is vectorized: everything inside reads contiguously along its own variable.
        return aligned.variables == loop.variables and length == len(loop.variables)
    is_plain = loop.body and all(isinstance(each, Store) for each in loop.body)
    if not is_plain or length == len(aligned.variables):
        return True
    along, remaining = _along(loop), aligned.variables[length:]
    # A piece of the variable is as good if it is all that remains: no other variable strides over memory in between.
    return along is None or along in remaining or (len(remaining) == 1 and _along(aligned) == remaining[0])


def _along(loop: Loop) -> Variable | None:
    """The variable along which the loop's first store is contiguous."""
    store = next(each for each in loop.body if isinstance(each, Store))
    offset = store.buffer.offset(store.indices)
    return next((each for each in loop.variables if coefficient_of(offset, each) == constant(1)), None)


def _across(loop: Loop) -> Variable | None:
    """The variable of this loop along which the inner loops' reads are contiguous, if they are along none of theirs."""
    inner = tuple(each for each in loop.body if isinstance(each, Loop))
    inside, outside = set(variables_of(inner)), set[Variable]()
    for load in loads_of(inner):
        offset = load.buffer.offset(load.indices)
        along = _side_by_side(offset)
        if not along.isdisjoint(inside):
            return None
        if along and not inside.isdisjoint(atoms(offset)):
            outside |= along
    return next((each for each in loop.variables if each in outside), None)


@remembered
def _side_by_side(offset: Index) -> frozenset[Variable]:
    """The variables with stride 1."""
    variables = (each for each in atoms(offset) if isinstance(each, Variable))
    return frozenset(each for each in variables if coefficient_of(offset, each) == constant(1))


def _reads_from(second: Loop, first: Loop) -> bool:
    return not {store.buffer for store in stores_of((first,))}.isdisjoint(load.buffer for load in loads_of((second,)))


def _read_alike(first: Loop, second: Loop, length: int) -> bool:
    """Whether both iterate in the same way over something that both read; rows and columns may be equally many."""
    common = {load.buffer for load in loads_of((first,))} & {load.buffer for load in loads_of((second,))}
    ways = [_strides(loop, common, loop.variables[:length]) for loop in (first, second)]
    return not common or not ways[0].isdisjoint(ways[1])


def _strides(loop: Loop, buffers: set[Buffer], variables: tuple[Variable, ...]) -> set[tuple[object, ...]]:
    places = {(load.buffer, load.buffer.offset(load.indices)) for load in loads_of((loop,)) if load.buffer in buffers}
    return {(buffer, *(coefficient_of(offset, each) for each in variables)) for buffer, offset in places}


def _aligned(first: Loop, second: Loop) -> tuple[Loop, Loop]:
    """Split variables of either loop where the other has the same range in two variables."""
    position = 0
    while position < min(len(first.variables), len(second.variables)):
        left, right = first.variables[position], second.variables[position]
        if _is_cut_by(left.extent, right.extent):
            first = split_variable(first, left, floor_divide(left.extent, right.extent))
        elif _is_cut_by(right.extent, left.extent):
            second = split_variable(second, right, floor_divide(right.extent, left.extent))
        elif left.extent != right.extent:
            break
        position += 1
    return first, second


def _is_cut_by(extent: Index, part: Index) -> bool:
    """Whether a range is a multiple of a part's; a range of zero would match forever."""
    return extent not in (part, constant(0)) and divides(part, extent)


def _common_prefix(first: Loop, second: Loop) -> int:
    length = 0
    for left, right in zip(first.variables, second.variables, strict=False):
        if left.extent != right.extent:
            break
        length += 1
    return length


def _peel(loop: Loop, length: int) -> Loop:
    """The loop over the first `length` variables only, containing a loop over the others."""
    if length == len(loop.variables):
        return loop
    return Loop(loop.variables[:length], (Loop(loop.variables[length:], loop.body),), loop.accumulators)


def _reads_own_iteration(first: Loop, second: Loop, length: int) -> bool:
    """Whether each iteration of the merged loop reads, of what `first` writes, only what the same iteration wrote."""
    shared = dict(zip(second.variables[:length], first.variables[:length], strict=True))
    stores = {store.buffer: store for store in stores_of(first.body)}
    if not declared_in((first,)).isdisjoint(accumulated_in(second.body)):
        return False
    renaming = substitution({old: atom(new) for old, new in shared.items()})
    for load in loads_of(second.body):
        store = stores.get(load.buffer)
        if store is not None and not _same_iteration(store, rewrite(load, renaming, {}), first.variables[:length]):
            return False
    return True


def _same_iteration(store: Store, load: Scalar, variables: tuple[Variable, ...]) -> bool:
    assert isinstance(load, Load)
    written, read = store.buffer.offset(store.indices), load.buffer.offset(load.indices)
    return all(
        variable.extent == constant(1)
        or _has_subscript(store.indices, load.indices, variable)
        or _is_same_digit(written, read, variable)
        for variable in variables
    )


def _has_subscript(written: tuple[Index, ...], read: tuple[Index, ...], variable: Variable) -> bool:
    places = [dim for dim, index in enumerate(written) if index == atom(variable)]
    return bool(places) and all(read[dim] == atom(variable) for dim in places)


def _is_same_digit(written: Index, read: Index, variable: Variable) -> bool:
    """Whether both addresses determine the variable, as a number determines each of its digits."""
    step = coefficient_of(written, variable)
    if step is None or step == constant(0) or coefficient_of(read, variable) != step:
        return False
    others = [place - atom(variable) * step for place in (written, read)]
    return all(
        is_between(other, step) or is_between(remainder(other, step * variable.extent), step) for other in others
    )
