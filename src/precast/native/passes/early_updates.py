"""Update inputs as early as possible where the update is the last reader of something large.

Before::

    call mm: grad_2 = …
    call mm: grad_1 = …
    for i0:  weight_2[i0] = weight_2[i0] - grad_2[i0]
    for i0:  weight_1[i0] = weight_1[i0] - grad_1[i0]

After::

    call mm: grad_2 = …
    for i0:  weight_2[i0] = weight_2[i0] - grad_2[i0]
    call mm: grad_1 = …
    for i0:  weight_1[i0] = weight_1[i0] - grad_1[i0]

The gradients of a training step are then not all live at its end, and each is read while it is still in a cache.
"""

from __future__ import annotations

from precast.native.loops.buffers import Buffer
from precast.native.loops.program import Fallible, Kernel, LoopProgram, Step, read_by, with_steps, written_by
from precast.native.passes.group import is_small


def update_early(program: LoopProgram) -> LoopProgram:
    """Move steps that only write inputs, and the light ones they need, up to right after their last dependency."""
    moving = _Moving(program)
    places: list[tuple[int, int]] = []
    touched: dict[Buffer, int] = {}
    written: dict[Buffer, int] = {}
    fallible = -1
    for number, step in enumerate(program.steps):
        place = number
        if moving.is_light(step) or moving.is_update(step, number):
            needed = [written.get(buffer, -1) for buffer in read_by(step)]
            needed += [touched.get(buffer, -1) for buffer in written_by(step)]
            # An input is not overwritten before steps that may fail.
            place = max(fallible, *needed)
        places.append((place, number))
        for buffer in (*read_by(step), *written_by(step)):
            touched[buffer] = max(touched.get(buffer, -1), place)
        for buffer in written_by(step):
            written[buffer] = max(written.get(buffer, -1), place)
        if isinstance(step, Fallible):
            fallible = number
    order = sorted(range(len(places)), key=places.__getitem__)
    if order == list(range(len(places))):
        return program
    return with_steps(program, [program.steps[number] for number in order])


class _Moving:
    """Decides which steps of a program are worth moving."""

    def __init__(self, program: LoopProgram) -> None:
        self._inputs, temporaries = set(program.inputs), set(program.temporaries)
        self._small = {buffer for buffer in temporaries if is_small(buffer)}
        self._large = temporaries - self._small
        self._last_read = {buffer: number for number, step in enumerate(program.steps) for buffer in read_by(step)}

    def is_update(self, step: Step, number: int) -> bool:
        """Whether the step only writes inputs, and is the last reader of something large."""
        ends = (buffer for buffer in self._large.intersection(read_by(step)) if self._last_read[buffer] == number)
        return self._writes_only(step, self._inputs) and next(ends, None) is not None

    def is_light(self, step: Step) -> bool:
        """Whether the step computes something small from something small, e.g. a learning rate from a step count."""
        return self._writes_only(step, self._small) and self._large.isdisjoint(read_by(step))

    def _writes_only(self, step: Step, buffers: set[Buffer]) -> bool:
        return isinstance(step, Kernel) and bool(step.written) and buffers.issuperset(step.written)
