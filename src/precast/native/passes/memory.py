"""In-place reuse: a loop writes its result over what it reads for the last time; then the arena is planned.

Before::

    t = matmul(…)
    for i0, i1:  result[i0, i1] = sin(t[i0, i1])

After::

    result = matmul(…)
    for i0, i1:  result[i0, i1] = sin(result[i0, i1])

They become one buffer, not two at one address: a kernel's pointers are declared not to alias. Likewise for temporaries
inside a kernel: the powers of a softmax are written where its result will be.

The plan gives every temporary a place in one block of memory, the arena, so that live buffers never overlap.

Before: ``mm`` lives in steps 0–1, ``gelu`` in 1–3, ``mean`` in 2–4.
After: ``mm`` at 0, ``gelu`` at 192, ``mean`` at 0, arena of 384 bytes.

Buffers of known size are packed first, largest first, each at the lowest offset that is free during its lifetime.
Buffers of dynamic size follow; one reuses the place of a dead one if both have the same size expression.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from precast.events import stage
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Variable, atoms, constant, floor_divide
from precast.native.loops.program import (
    Kernel,
    Loop,
    LoopProgram,
    Plan,
    Statement,
    Store,
    loads_of,
    read_by,
    stores_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import with_buffers
from precast.native.loops.size_bounds import NO_BOUNDS, Bounds, upper_bound


def overwrite_dying(program: LoopProgram) -> LoopProgram:
    """Write over temporaries that are read for the last time."""
    first, last = _first_and_last_uses(program)
    free, taken = set(program.temporaries), dict[Buffer, Buffer]()
    for number, step in enumerate(program.steps):
        if not isinstance(step, Kernel) or not (len(step.body) == 1 and isinstance(step.body[0], Loop)):
            continue
        dying = [each for each in step.read if each in free and last[each] == number]
        # Temporaries made in this kernel come first: made between the older ones and the result, may share both places.
        dying.sort(key=lambda each: first[each] < number)
        made = _made_once(step.body[0]) if dying else {}
        for target in step.written if dying else ():
            is_new = first[target] == number and target not in program.inputs
            alike = [each for each in dying if each.is_laid_out_like(target)] if is_new else []
            source = next((each for each in alike if _may_become(step, each, target, made)), None)
            if source is not None:
                dying.remove(source)
                taken[source] = target
    names = _resolved(taken)
    return with_steps(program, [with_buffers(step, names) for step in program.steps])


def _first_and_last_uses(program: LoopProgram) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    first, last = dict[Buffer, int](), dict[Buffer, int]()
    for number, step in enumerate(program.steps):
        for buffer in (*read_by(step), *written_by(step)):
            first.setdefault(buffer, number)
            last[buffer] = number
    return first, last


def _made_once(loop: Loop) -> dict[Buffer, tuple[int, Store]]:
    """Buffers that exactly one store writes, with that store and the number of the loop's statement that holds it."""
    stores: dict[Buffer, list[tuple[int, Store]]] = {}
    for number, part in enumerate(loop.body):
        for store in part.stores:
            stores.setdefault(store.buffer, []).append((number, store))
    return {buffer: found[0] for buffer, found in stores.items() if len(found) == 1}


def _may_become(kernel: Kernel, source: Buffer, target: Buffer, made: dict[Buffer, tuple[int, Store]]) -> bool:
    """As `may_overwrite`, for a `source` that the kernel itself may have computed."""
    if source not in kernel.written:
        return may_overwrite(kernel, source, target)
    (loop,) = kernel.body
    assert isinstance(loop, Loop), "kernels of one loop are looked at"
    is_made_before = source in made and target in made and _is_made_before(loop, *made[source], *made[target])
    return is_made_before and _is_read_when_written(kernel, source, target)


def _is_made_before(loop: Loop, first: int, made: Store, second: int, written: Store) -> bool:
    """Whether an iteration of the outermost loop writes its part of one buffer where it later writes the other's."""
    if first >= second or not made.is_plain:
        return False
    own = _subscripts_of(loop.variables, written)
    is_own = bool(own) and own == _subscripts_of(loop.variables, made)
    return is_own and all(made.indices[dim] == written.indices[dim] for dim in own or ())


def may_overwrite(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    """Whether each element of `source` is read before that of `target` is written, for any order of iterations."""
    return source not in kernel.written and _is_read_when_written(kernel, source, target)


def _is_read_when_written(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    stores = [store for store in stores_of(kernel.body) if store.buffer == target]
    if not source.is_laid_out_like(target) or len(stores) != 1 or not stores[0].is_plain:
        return False
    place = next(number for number, part in enumerate(kernel.body) if stores[0] in stores_of((part,)))
    if any(load.buffer == source for load in loads_of(kernel.body[place + 1 :])):
        return False
    match kernel.body[place]:
        case Loop(variables, body):
            return _is_read_before(source, stores[0], variables, body)
    return _is_read_before(source, stores[0], (), (stores[0],))


def _is_read_before(source: Buffer, store: Store, outer: tuple[Variable, ...], body: tuple[Statement, ...]) -> bool:
    """The same for the body of a kernel's outermost loop, whose iterations may run in parallel."""
    place = next(number for number, part in enumerate(body) if store in stores_of((part,)))
    own, earlier = _subscripts_of(outer, store), _just_before(body, store)
    before, beside, after = (
        [load for load in loads_of(part) if load.buffer == source]
        for part in (body[:place], (body[place],), body[place + 1 :])
    )
    return (
        not after
        and all(load.indices == store.indices for load in beside)
        and all(part is store or part in earlier for part in _readers(body[place], source))
        # Earlier loops may read whatever only this iteration is going to write.
        and (not before or own is not None)
        and all(load.indices[dim] == store.indices[dim] for load in before for dim in own or ())
    )


def _just_before(body: tuple[Statement, ...], store: Store) -> tuple[Statement, ...]:
    """The statements that run before the store in each iteration of the innermost loop around it."""
    if store in body:
        return body[: body.index(store)]
    inner = (part for part in body if isinstance(part, Loop) and store in stores_of((part,)))
    return _just_before(next(inner).body, store)


def _subscripts_of(outer: tuple[Variable, ...], store: Store) -> list[int] | None:
    """The dimensions indexed by the outermost loop's variables alone; None if others depend on them as well.

    No two iterations write one element, so those of the outermost loop differ in these dimensions.
    """
    own = []
    for dim, index in enumerate(store.indices):
        variables = {each for each in atoms(index) if isinstance(each, Variable)}
        if variables <= set(outer):
            own.append(dim)
        elif variables & set(outer):
            return None
    return own


def _readers(part: Statement, source: Buffer) -> Iterator[Statement]:
    """The innermost statements in `part` that read `source`."""
    if isinstance(part, Loop):
        for each in part.body:
            yield from _readers(each, source)
    elif any(load.buffer == source for load in loads_of((part,))):
        yield part


def _resolved(taken: dict[Buffer, Buffer]) -> dict[Buffer, Buffer]:
    """The final buffer of each chain: a reused buffer may itself be reused."""

    def end(buffer: Buffer) -> Buffer:
        while buffer in taken:
            buffer = taken[buffer]
        return buffer

    return {buffer: end(buffer) for buffer in taken}


ALIGNMENT = 64


@stage
def plan(program: LoopProgram, bounds: Bounds = NO_BOUNDS, *, apart: Collection[Buffer] = ()) -> Plan:
    """Place the temporaries of `program` in the arena, except `apart`, which are stored elsewhere.

    Data-dependent sizes are assumed to be as large as their bounds.
    """
    lives = {buffer: life for buffer, life in lifetimes(program).items() if buffer not in apart}
    room = {buffer: upper_bound(buffer.byte_size, bounds) for buffer in lives}
    fixed = {buffer: known for buffer in lives if (known := room[buffer].constant) is not None}
    offsets, fixed_size = _place_fixed(fixed, lives)
    places: list[tuple[Index, Index, int]] = []
    end = constant(fixed_size)
    for buffer in sorted(set(lives) - set(fixed), key=lambda each: (lives[each], each.name)):
        size, (first, last) = _aligned(room[buffer]), lives[buffer]
        free = next((n for n, (_, room, until) in enumerate(places) if room == size and until < first), None)
        if free is None:
            places.append((end, size, last))
            offsets[buffer], end = end, end + size
        else:
            offsets[buffer] = places[free][0]
            places[free] = (places[free][0], size, last)
    return Plan(offsets, end)


def lifetimes(program: LoopProgram) -> dict[Buffer, tuple[int, int]]:
    """For each temporary, the first and the last step that accesses it."""
    lives: dict[Buffer, tuple[int, int]] = {}
    temporaries = set(program.temporaries)
    for number, step in enumerate(program.steps):
        for buffer in (*written_by(step), *read_by(step)):
            if buffer in temporaries:
                lives[buffer] = (lives.get(buffer, (number, number))[0], number)
    return lives


def _place_fixed(sizes: dict[Buffer, int], lives: dict[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, Index], int]:
    placed: list[tuple[int, int, Buffer]] = []
    for buffer in sorted(sizes, key=lambda each: (-sizes[each], lives[each], each.name)):
        size, offset = -(-sizes[buffer] // ALIGNMENT) * ALIGNMENT, 0
        for start, stop, other in sorted(placed, key=lambda place: place[0]):
            if _overlap(lives[buffer], lives[other]) and start < offset + size and offset < stop:
                offset = stop
        placed.append((offset, offset + size, buffer))
    return {buffer: constant(start) for start, _, buffer in placed}, max((stop for _, stop, _ in placed), default=0)


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]


def _aligned(size: Index) -> Index:
    return floor_divide(size + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT
