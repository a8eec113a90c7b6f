"""Let convolutions pad by themselves what was padded with zeros before them.

Before::

    for …:  pad[i0, i1, i2, i3] = where(0 <= i2 - 1 < 9, x[i0, i1, i2 - 1, i3], 0)
    call conv: conv = convolution(pad, w), padding 0, 0

After::

    call conv: conv = convolution(x, w), padding 1, 0

The other end needs no number: how far filters reach beyond it follows from the size of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precast.ir.loops.buffers import Buffer, whole
from precast.ir.loops.index import atom, constant
from precast.ir.loops.program import Kernel, LibraryCall, LoopProgram, Step, with_steps
from precast.ir.loops.scalars import Apply, Constant, Load
from precast.lower.inline import definition_of, strip_names

READING_SOURCES = ("convolution", "convolution_backward_weights", "depthwise_convolution")
"""Routines whose first input is what a convolution reads."""


@dataclass(frozen=True)
class _Padding:
    """What is padded, and by how many zeros before each spatial dimension."""

    source: Buffer
    before: tuple[int, ...]


def fold_padding(program: LoopProgram) -> LoopProgram:
    """Read what was padded directly; loops that pad for nobody else stay for `remove_dead`."""
    paddings: dict[Buffer, _Padding] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            padding = _padding_of(step)
            if padding is not None:
                paddings[step.written[0]] = padding
        elif isinstance(step, LibraryCall) and step.routine in READING_SOURCES:
            padding = paddings.get(step.inputs[0].buffer)
            if padding is not None:
                step = _folded(step, padding)
        steps.append(step)
    return with_steps(program, steps)


def _folded(call: LibraryCall, padding: _Padding) -> LibraryCall:
    spatial = len(padding.before)
    groups, numbers = call.numbers[0], call.numbers[1:]
    strides, paddings, dilations = (numbers[part * spatial :][:spatial] for part in range(3))
    wider = tuple(own + more for own, more in zip(paddings, padding.before, strict=True))
    inputs = (whole(padding.source), *call.inputs[1:])
    return replace(call, inputs=inputs, numbers=(groups, *strides, *wider, *dilations))


def _padding_of(kernel: Kernel) -> _Padding | None:
    """A kernel seen as padding with zeros along spatial dimensions, if it is that."""
    definition = definition_of(kernel)
    if definition is None or not 3 <= len(definition.variables) <= 5:
        return None
    match strip_names(definition.value):
        case Apply("where", (condition, Load(source, indices, guard), Constant(0))) if guard is condition:
            pass
        case _:
            return None
    places = [constant(0) if each is None else atom(each) for each in definition.variables]
    before = [(place - index).constant for place, index in zip(places, indices, strict=True)]
    sizes = zip(definition.buffer.shape, source.shape, before, strict=True)
    after = [None if start is None else (padded - own - start).constant for padded, own, start in sizes]
    if any(each is None or each < 0 for each in (*before, *after)) or any((*before[:2], *after[:2])):
        return None
    return _Padding(source, tuple(each for each in before[2:] if each is not None))
