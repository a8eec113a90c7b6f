"""Horizontal fusion: run kernels that do the same to different tensors as one.

Before::

    kernel mul:    for i0 < 9408:  mul[i0] = p[i0] * 0.9
    call mm: …
    kernel mul_1:  for i0 < 64:  mul_1[i0] = q[i0] * 0.9

After::

    call mm: …
    group mul:  both

One parallel region then covers all of them, so that an optimizer's many small tensors share the threads of its few
large ones, and one function is compiled for all sizes. A kernel moves down to the next of its pattern, or up to the
last, past independent steps. The lifetimes of large temporaries are not extended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from precast.native.loops.buffers import Buffer
from precast.native.loops.canonical import canonical_key, pattern_of
from precast.native.loops.program import (
    Accumulate,
    Fallible,
    Kernel,
    KernelGroup,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    read_by,
    with_steps,
    written_by,
)

SMALL = 4096
"""Temporaries up to this many bytes may live longer than necessary."""


def group_kernels(program: LoopProgram) -> LoopProgram:
    """Group independent kernels of the same pattern."""
    order, groups = _Order(program), dict[str, _Place]()
    for step in program.steps:
        key = _key(step) if isinstance(step, Kernel) else None
        place = order.add(step, groups.get(key) if key else None)
        if key:
            groups[key] = place
    return with_steps(program, list(order.steps()))


@dataclass(eq=False)
class _Place:
    """Steps that run together.

    `is_needed` if a later step depends on them; `read_until` is the earliest last use of a large temporary that they
    read.
    """

    number: int
    read_until: int
    steps: list[Step] = field(default_factory=list)
    is_needed: bool = False


class _Order:
    """Places in the order of their numbers, and which buffers they access."""

    def __init__(self, program: LoopProgram) -> None:
        self.places: dict[int, _Place] = {}
        self._number, self._end = 0, len(program.steps)
        self._readers: dict[Buffer, set[_Place]] = {}
        self._writers: dict[Buffer, set[_Place]] = {}
        self._large = {buffer for buffer in program.temporaries if not is_small(buffer)}
        self._inputs, self._fallible = set(program.inputs), set[_Place]()
        self._last = {buffer: number for number, step in enumerate(program.steps) for buffer in read_by(step)}

    def add(self, step: Step, group: _Place | None) -> _Place:
        """Add the program's next step to `group`, if it may run with it; otherwise at the end."""
        needed = self._needed_by(step)
        if group is not None and self._may_move_down(group, needed):
            place = self._move_to_end(group)
        elif group is not None and self._may_move_up(step, group, needed):
            place = group
        else:
            place = self.places[self._number] = _Place(self._number, self._end)
        place.steps.append(step)
        for each in needed:
            each.is_needed = True
        for buffers, places in ((read_by(step), self._readers), (written_by(step), self._writers)):
            for buffer in buffers:
                places.setdefault(buffer, set()).add(place)
        if isinstance(step, Fallible):
            self._fallible.add(place)
        place.read_until = min(
            [place.read_until, *(self._last[each] for each in self._large.intersection(read_by(step)))]
        )
        self._number += 1
        return place

    def _needed_by(self, step: Step) -> set[_Place]:
        """The step's dependencies: writers of what it accesses, and readers of what it writes."""
        needed = {place for buffer in read_by(step) for place in self._writers.get(buffer, ())}
        for buffer in written_by(step):
            needed |= self._writers.get(buffer, set()) | self._readers.get(buffer, set())
        # An input is not overwritten before steps that may fail.
        return needed if self._inputs.isdisjoint(written_by(step)) else needed | self._fallible

    def _may_move_down(self, group: _Place, needed: set[_Place]) -> bool:
        """Whether no step so far depends on the group, and no large temporary that it reads would live longer."""
        return group not in needed and not group.is_needed and group.read_until >= self._number

    def _may_move_up(self, step: Step, group: _Place, needed: set[_Place]) -> bool:
        """Whether all dependencies of the step come before the group, and it defines no large temporary."""
        return all(each.number < group.number for each in needed) and self._large.isdisjoint(written_by(step))

    def _move_to_end(self, place: _Place) -> _Place:
        del self.places[place.number]
        place.number = self._number
        self.places[place.number] = place
        return place

    def steps(self) -> Iterator[Step]:
        """The steps in their new order."""
        for number in sorted(self.places):
            members = tuple(step for step in self.places[number].steps if isinstance(step, Kernel))
            if len(members) > 1:
                yield KernelGroup(members[0].name, members)
            else:
                yield from self.places[number].steps


def is_small(buffer: Buffer) -> bool:
    """Whether the lifetime of a temporary does not matter."""
    size = buffer.byte_size.constant
    return size is not None and size <= SMALL


def _key(kernel: Kernel) -> str | None:
    """What kernels must have in common to be grouped; None for one that runs on its own."""
    return canonical_key(pattern_of(kernel).kernel) if _may_run_with_others(kernel.body) else None


def _may_run_with_others(body: tuple[Statement, ...]) -> bool:
    """Whether this is a plain loop over one variable, a reduction over one and what follows, or not a loop."""
    match body:
        case (Loop((_,), inner, ()),):
            return _are_plain(inner)
        case (Loop((_,), inner, accumulators), *rest) if accumulators and rest:
            return _are_plain([each for each in inner if not isinstance(each, Accumulate)]) and _are_plain(rest)
    return _are_plain(body)


def _are_plain(statements: Sequence[Statement]) -> bool:
    return all(isinstance(each, Store) and each.is_plain for each in statements)
