"""Lay images out as convolutions like them, channels last, from the first convolution to the last.

Before::

    call conv: conv: f32[1, 64, 56, 56] strides (200704, 3136, 56, 1) = convolution(…)
    for i0 < 1, i1 < 64, i2 < 56, i3 < 56:  relu[i0, i1, i2, i3] = maximum(conv[i0, i1, i2, i3], 0)

After::

    call conv: conv: f32[1, 64, 56, 56] strides (200704, 1, 3584, 64) = convolution(…)
    for …:  relu[i0, i1, i2, i3] = …, both with strides (200704, 1, 3584, 64)

The program's inputs and outputs keep their layouts: it is changed at these borders only, by the call or the loop that
crosses them. Those that lie channels last already pass it on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from precast.ir.loops.buffers import Buffer, contiguous_strides
from precast.ir.loops.index import Index, Variable, coefficient_of, constant
from precast.ir.loops.program import (
    FallbackStep,
    Kernel,
    LibraryCall,
    LoopProgram,
    Step,
    Store,
    loads_of,
    read_by,
    stores_of,
    with_steps,
)
from precast.ir.loops.rewriting import with_buffers
from precast.ir.loops.scalars import Load

RANKS = (3, 4, 5)
"""Batch, channels, and one to three spatial dimensions."""


def channels_last(program: LoopProgram) -> LoopProgram:
    """Give the temporaries that convolutions read and write, and all that is computed along them, that layout."""
    placed = [buffer for step in program.steps if _goes_by_memory(step) for buffer in read_by(step)]
    fixed = {*program.inputs, *program.outputs, *placed}
    waiting = [buffer for step in program.steps for buffer in _images_of(step)]
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


def channels_last_strides(shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Strides of a buffer whose dimension 1 lies innermost."""
    batch, *spatial, channels = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (batch, channels, *spatial)


def _goes_by_memory(step: Step) -> bool:
    """Whether torch finds elements by where they lie: then they lie as in eager."""
    return isinstance(step, FallbackStep) and step.operator.startswith("aten.as_strided")


def _images_of(step: Step) -> tuple[Buffer, ...]:
    """What a convolution reads and writes, but for its weights."""
    if not isinstance(step, LibraryCall):
        return ()
    match step.routine:
        case "convolution" | "convolution_backward_data" | "depthwise_convolution":
            return step.inputs[0].buffer, step.outputs[0].buffer
        case "convolution_backward_weights":
            return step.inputs[0].buffer, step.inputs[1].buffer
    return ()


def _neighbours(program: LoopProgram) -> dict[Buffer, set[Buffer]]:
    """Which buffers loops walk along together, channel by channel."""
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
