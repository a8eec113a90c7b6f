"""Layout optimization: images are channels last from the first convolution to the last.

Before::

    call conv: conv: f32[1, 64, 56, 56] strides (200704, 3136, 56, 1) = convolution(…)
    for i0 < 1, i1 < 64, i2 < 56, i3 < 56:  relu[i0, i1, i2, i3] = maximum(conv[i0, i1, i2, i3], 0)

After::

    call conv: conv: f32[1, 64, 56, 56] strides (200704, 1, 3584, 64) = convolution(…)
    for …:  relu[i0, i1, i2, i3] = …, both with strides (200704, 1, 3584, 64)

The program's inputs and outputs keep their layouts, which are converted at these boundaries only, by the call or loop
that crosses them. Inputs that are already channels last propagate that layout.

Convolutions absorb zero padding of their input.

Before::

    for …:  pad[i0, i1, i2, i3] = where(0 <= i2 - 1 < 9, x[i0, i1, i2 - 1, i3], 0)
    call conv: conv = convolution(pad, w), padding 0, 0

After::

    call conv: conv = convolution(x, w), padding 1, 0

Padding at the end needs no argument: it follows from the size of the result.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from precast.native.loops.buffers import Buffer, channels_last_strides, whole
from precast.native.loops.index import Variable, atom, coefficient_of, constant
from precast.native.loops.program import (
    FallbackStep,
    Kernel,
    LibraryCall,
    LoopProgram,
    Repeat,
    Run,
    Step,
    Store,
    loads_of,
    read_by,
    stores_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import with_buffers
from precast.native.loops.scalars import Apply, Constant, Load
from precast.native.passes.inline import definition_of, strip_names

RANKS = (3, 4, 5)
"""Batch, channels, and one to three spatial dimensions."""


def channels_last(program: LoopProgram, *, weights: bool = False) -> LoopProgram:
    """Make channels last the temporaries that convolutions read and write, and those computed elementwise from them.

    With `weights`, filters and their gradients as well.
    """
    placed = [
        buffer for step in program.steps if _depends_on_layout(step) for buffer in (*read_by(step), *written_by(step))
    ]
    fixed = {*program.inputs, *program.outputs, *placed}
    waiting = [buffer for step in program.steps for buffer in _images_of(step, weights=weights)]
    if not waiting:
        return program
    neighbours = _neighbours(program)
    images: dict[Buffer, Buffer] = {}
    while waiting:
        buffer = waiting.pop()
        arranged = replace(buffer, strides=channels_last_strides(buffer.shape))
        if buffer not in images and (buffer not in fixed or buffer == arranged):
            images[buffer] = arranged
            waiting += neighbours[buffer]
    return with_steps(program, [with_buffers(step, images) for step in program.steps])


def _depends_on_layout(step: Step) -> bool:
    """Whether a fallback or a part depends on the layout of its operands, which then must be eager's."""
    return (isinstance(step, FallbackStep) and step.sees_layouts) or isinstance(step, Run | Repeat)


def _images_of(step: Step, *, weights: bool) -> tuple[Buffer, ...]:
    """The images that a convolution reads and writes; its weights only with `weights`."""
    if not isinstance(step, LibraryCall):
        return ()
    if weights and step.routine.startswith("convolution"):
        return tuple(view.buffer for view in (*step.inputs, *step.outputs))
    match step.routine:
        case "convolution" | "convolution_backward_data" | "depthwise_convolution":
            return step.inputs[0].buffer, step.outputs[0].buffer
        case "convolution_backward_weights":
            return step.inputs[0].buffer, step.inputs[1].buffer
    return ()


def _neighbours(program: LoopProgram) -> dict[Buffer, set[Buffer]]:
    """Buffers that loops traverse together, channel by channel."""
    found: dict[Buffer, set[Buffer]] = defaultdict(set)
    for step in program.steps:
        if not isinstance(step, Kernel):
            continue
        loads = [load for load in loads_of(step.body) if len(load.buffer.shape) in RANKS]
        for store in stores_of(step.body):
            for load in loads:
                if _walk_together(store, load):
                    found[store.buffer].add(load.buffer)
                    found[load.buffer].add(store.buffer)
    return found


def _walk_together(store: Store, load: Load) -> bool:
    if len(store.indices) != len(load.indices):
        return False
    match store.indices[1].terms:
        case (((Variable() as channel,), 1),):
            return coefficient_of(load.indices[1], channel) == constant(1)
    return False


READING_SOURCES = ("convolution", "convolution_backward_weights", "depthwise_convolution")
"""Routines whose first input is a convolution's input."""


@dataclass(frozen=True)
class _Padding:
    """What is padded, and by how many zeros before each spatial dimension."""

    source: Buffer
    before: tuple[int, ...]


def fold_padding(program: LoopProgram) -> LoopProgram:
    """Read the unpadded input directly; padding loops that nothing else reads are left to `remove_dead`."""
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
    """The zero padding along spatial dimensions that a kernel is, if it is one."""
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
