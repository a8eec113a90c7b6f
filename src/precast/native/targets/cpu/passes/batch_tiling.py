"""Batch tiling: take consecutive convolutions image by image, where the whole batch would exceed the cache.

Before::

    call conv: a = convolution(x, w)         8 images of 4.8 MB
    call conv_1: b = convolution(a, v)

After::

    call conv: a_0 = convolution(x[0:1], w)
    call conv_1: b[0:1] = convolution(a_0, v)
    call conv: a_1 = convolution(x[1:2], w)  …

Intermediate images are written and read again at once, and each reuses the memory of the one before. Images of
large batches are taken several at a time, since every turn is unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import constant
from precast.native.loops.program import LibraryCall, LoopProgram, Step, read_by, with_steps, written_by

_ROUTINES = frozenset({"convolution", "depthwise_convolution"})
_STAYS = 1 << 22
"""A step must access more bytes of images than this to be worth tiling: several times a core's own cache."""
_NEVER_STAYS = 1 << 25
"""At this many bytes, a turn is no better than the whole batch."""
_MOST_TURNS = 16


def take_image_by_image(program: LoopProgram) -> LoopProgram:
    """Tile runs of convolutions over batches of static size."""
    users = Counter(buffer for step in program.steps for buffer in _touched(step))
    users.update({*program.inputs, *program.outputs})
    steps: list[Step] = []
    for count, run in groupby(program.steps, key=_image_count):
        chain = list(run)
        steps += chain if count is None else _by_image(chain, count, users)
    return with_steps(program, steps)


def _image_count(step: Step) -> int | None:
    """The batch size of a step, if the step is worth tiling."""
    if not isinstance(step, LibraryCall) or step.routine not in _ROUTINES:
        return None
    count = step.outputs[0].shape[0].constant
    images = [view.buffer.byte_size.constant for view in (step.inputs[0], step.outputs[0])]
    filters = step.inputs[1].buffer.byte_size.constant
    if count is None or count < 2 or filters is None or None in images:
        return None
    bytes_touched = sum(each for each in images if each is not None)
    turns = -(-count // _turn(count))
    is_worth_it = _STAYS < bytes_touched < _NEVER_STAYS * turns and filters * turns < bytes_touched
    return count if is_worth_it and all(map(_holds_images_in_order, _images(step))) else None


def _images(step: Step) -> tuple[View, ...]:
    """The operands and results of a convolution that have a batch dimension."""
    assert isinstance(step, LibraryCall), "only convolutions are asked"
    return (step.inputs[0], *step.inputs[len(step.own_inputs) :], *step.outputs)


def _holds_images_in_order(view: View) -> bool:
    """Whether a view's first dimension is its buffer's outermost, or is broadcast."""
    buffer = view.buffer
    if view.strides[0] == constant(0):
        return True
    first, strides = view.offset.constant, [stride.constant for stride in buffer.strides]
    if first is None or None in strides or len(buffer.shape) != len(view.shape):
        return False
    outermost = strides[0]
    assert outermost is not None, "checked above"
    return (
        (buffer.shape[0], buffer.strides[0]) == (view.shape[0], view.strides[0])
        and all(stride is not None and stride <= outermost for stride in strides)
        and first < outermost
    )


def _turn(count: int) -> int:
    """The number of images per turn."""
    return -(-count // _MOST_TURNS)


def _by_image(chain: Sequence[Step], count: int, users: Counter[Buffer]) -> Iterator[Step]:
    """The steps of a chain for each turn; intermediate buffers that only it accesses shrink to one turn's images."""
    inside = Counter(buffer for step in chain for buffer in _touched(step))
    between = {view.buffer for step in chain for view in _images(step) if inside[view.buffer] == users[view.buffer]}
    if not between:
        yield from chain
        return
    for first in range(0, count, _turn(count)):
        turn = _Turn(first, min(_turn(count), count - first), between)
        for step in chain:
            assert isinstance(step, LibraryCall), "only convolutions are in a chain"
            own = len(step.own_inputs)
            inputs = (
                turn.part_of(view) if place == 0 or place >= own else view for place, view in enumerate(step.inputs)
            )
            yield replace(step, inputs=tuple(inputs), outputs=tuple(map(turn.part_of, step.outputs)))


@dataclass(frozen=True)
class _Turn:
    """`count` images from `start` on; each turn has its own copies of the buffers in `between`."""

    first: int
    count: int
    between: Set[Buffer]

    def part_of(self, view: View) -> View:
        shape = (constant(self.count), *view.shape[1:])
        if view.buffer not in self.between:
            return replace(view, shape=shape, offset=view.offset + view.strides[0] * self.first)
        size = (constant(self.count), *view.buffer.shape[1:])
        own = replace(view.buffer, name=f"{view.buffer.name}_image_{self.first}", shape=size)
        return replace(view, buffer=own, shape=shape)


def _touched(step: Step) -> set[Buffer]:
    return {*read_by(step), *written_by(step)}
