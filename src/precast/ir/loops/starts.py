"""Let a kernel begin where its tensors begin, and say how far into them it did.

Before: ``for i0 < 32:  h[i0] = f(x[7, i0])``
After:  ``for i0 < 32:  h[i0] = f(x[0, i0])``, called with ``x + 7 * 32``

A loop that a program writes out step by step has one kernel then, and not one a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, constant
from precast.ir.loops.program import Kernel, Store, loads_of, stores_of
from precast.ir.loops.rewriting import Place, replace_places
from precast.ir.loops.scalars import Load


def from_start(kernel: Kernel) -> tuple[Kernel, dict[Buffer, Index]]:
    """The kernel over tensors that begin where it begins, and how many elements after the real ones these do."""
    starts = {buffer: start for buffer, start in _lowest_subscripts(kernel).items() if any(start)}
    if not starts:
        return kernel, {}
    body = replace_places(kernel.body, lambda place: _moved(place, starts))
    offsets = {buffer: buffer.offset(tuple(map(constant, start))) for buffer, start in starts.items()}
    return replace(kernel, body=body), offsets


def _lowest_subscripts(kernel: Kernel) -> dict[Buffer, tuple[int, ...]]:
    """What is added to every subscript of a dimension, wherever a buffer is read or written."""
    lowest: dict[Buffer, tuple[int, ...]] = {}
    accesses: tuple[Load | Store, ...] = (*loads_of(kernel.body), *stores_of(kernel.body))
    for access in accesses:
        added = tuple(max(0, _added(index)) for index in access.indices)
        known = lowest.get(access.buffer)
        lowest[access.buffer] = added if known is None else tuple(map(min, known, added))
    return lowest


def _added(index: Index) -> int:
    return next((number for monomial, number in index.terms if not monomial), 0)


def _moved(place: Place, starts: Mapping[Buffer, tuple[int, ...]]) -> Place:
    buffer, indices = place
    start = starts.get(buffer)
    return place if start is None else (buffer, tuple(index - by for index, by in zip(indices, start, strict=True)))
