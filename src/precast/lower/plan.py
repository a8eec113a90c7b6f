"""Give every temporary buffer a place in one block of memory, the arena, so that buffers in use never overlap.

Before: ``mm`` lives in steps 0–1, ``gelu`` in 1–3, ``mean`` in 2–4.
After: ``mm`` at 0, ``gelu`` at 192, ``mean`` at 0, arena of 384 bytes.

Buffers of known size are packed first, largest first, each at the lowest place that is free during its life. Buffers of
dynamic size follow; one takes over the place of a dead one if both are the same expression in bytes.
"""

from __future__ import annotations

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, constant, floor_divide
from precast.ir.loops.program import LoopProgram, Plan, read_by, written_by

ALIGNMENT = 64


def plan(program: LoopProgram) -> Plan:
    """Place the temporaries of `program`."""
    lives = lifetimes(program)
    fixed = {buffer: known for buffer in lives if (known := buffer.byte_size.constant) is not None}
    offsets, fixed_size = _place_fixed(fixed, lives)
    places: list[tuple[Index, Index, int]] = []
    end = constant(fixed_size)
    for buffer in sorted(set(lives) - set(fixed), key=lambda each: (lives[each], each.name)):
        size, (first, last) = _aligned(buffer.byte_size), lives[buffer]
        free = next((n for n, (_, room, until) in enumerate(places) if room == size and until < first), None)
        if free is None:
            places.append((end, size, last))
            offsets[buffer], end = end, end + size
        else:
            offsets[buffer] = places[free][0]
            places[free] = (places[free][0], size, last)
    return Plan(offsets, end)


def lifetimes(program: LoopProgram) -> dict[Buffer, tuple[int, int]]:
    """For each temporary, the first and the last step that touches it."""
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
