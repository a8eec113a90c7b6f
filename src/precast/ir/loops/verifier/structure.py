"""Types agree, and accumulators are used by and after the loops that declare them."""

from __future__ import annotations

from collections.abc import Iterator

from precast.ir.loops.program import Kernel, Loop, Statement, Store
from precast.ir.loops.scalars import Accumulator
from precast.ir.loops.verifier.enumeration import Sizes


def misused(kernel: Kernel, examples: Sizes) -> Iterator[str]:
    """Values of a wrong type, and accumulators in a wrong place."""
    yield from _misused(kernel.body, frozenset(), set())


def _misused(
    body: tuple[Statement, ...], collecting: frozenset[Accumulator], finished: set[Accumulator]
) -> Iterator[str]:
    """`collecting` are the accumulators of the loops around; `finished`, those of loops that have ended."""
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
