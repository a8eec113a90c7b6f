"""Prologue fusion: depthwise convolutions apply elementwise operations to their input as they read it.

Before::

    for …:  relu6[i0, i1, i2, i3] = minimum(maximum(conv[i0, i1, i2, i3], 0), 6)
    call conv_1: conv_1 = depthwise_convolution(relu6, w)

After::

    call conv_1: conv_1 = depthwise_convolution(conv, w), first relu6

A loop is absorbed as a whole or not at all: where others read its result, that is computed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precast.native.loops.buffers import Buffer, whole
from precast.native.loops.program import Kernel, LibraryCall, LoopProgram, Step, reader_counts, with_steps
from precast.native.loops.scalars import Load, walk
from precast.native.passes.epilogues import EpilogueWriter, Match, Part, axes_of, path_from
from precast.native.passes.inline import Definition, definition_of

ROUTINES = ("depthwise_convolution",)


def absorb_prologues(program: LoopProgram) -> LoopProgram:
    """Move elementwise loops into the only call that reads their results."""
    if not any(isinstance(step, LibraryCall) and step.routine in ROUTINES for step in program.steps):
        return program
    readers = reader_counts(program)
    names = {buffer.name for buffer in (*program.inputs, *program.outputs, *program.temporaries)}
    called = {origin for step in program.steps if isinstance(step, LibraryCall) for origin in step.origins}
    loops: dict[Buffer, Kernel] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel) and len(step.written) == 1 and readers[step.written[0]] == 1:
            loops[step.written[0]] = step
        absorbed = None
        if isinstance(step, LibraryCall) and step.routine in ROUTINES:
            kernel = loops.get(step.inputs[0].buffer)
            absorbed = None if kernel is None else _absorb(step, _without_origins(kernel, called), names)
            if kernel is not None and absorbed is not None:
                steps.remove(kernel)
        steps += absorbed or [step]
    return with_steps(program, steps)


def _without_origins(kernel: Kernel, called: set[str]) -> Kernel:
    """The loop without the origins of calls whose epilogue it continues: these describe other work."""
    return replace(kernel, origins=tuple(each for each in kernel.origins if each not in called))


def _absorb(call: LibraryCall, kernel: Kernel, names: set[str]) -> list[Step] | None:
    """The steps that replace a loop and the call that reads its result; None if they stay as they are."""
    definition = definition_of(kernel)
    if definition is None or call.inputs[0] != whole(definition.buffer):
        return None
    for load in walk(definition.value):
        if not isinstance(load, Load) or load.buffer.shape != definition.buffer.shape:
            continue
        match = _match(call, definition, load)
        parts = [] if match is None else path_from(load, definition.value)
        if match is not None and parts and parts[-1].reached is definition.value and _are_taken(match, parts):
            return _grown(match, parts, kernel, names)
    return None


def _match(call: LibraryCall, definition: Definition, load: Load) -> Match | None:
    """How the loop traverses its operand; None unless each element is written at the place where it was read."""
    axes = axes_of(load, [each for each in definition.variables if each is not None])
    if axes is None or load.guard is not None or load.dtype != definition.buffer.dtype:
        return None
    match = Match(call, definition, load, axes)
    target = match.view_of(definition.buffer, definition.offset)
    if target is None or load.buffer.strides != definition.buffer.strides:
        return None
    steps = zip(target.strides, definition.buffer.strides, axes, strict=True)
    return match if all(mine == usual for mine, usual, axis in steps if axis.parts) else None


def _are_taken(match: Match, parts: Sequence[Part]) -> bool:
    return all(part.operand is None or match.is_of_channel(part.operand) for part in parts)


def _grown(match: Match, parts: Sequence[Part], kernel: Kernel, names: set[str]) -> list[Step]:
    writer = EpilogueWriter(match, names)
    for part in parts:
        writer.add(part)
    writer.flush()
    call = match.call
    grown = replace(
        call,
        inputs=(whole(match.load.buffer), *call.inputs[1:], *writer.operands),
        origins=tuple(dict.fromkeys((*kernel.origins, *call.origins))),
        prologue=tuple(writer.finishes),
    )
    return [*writer.kernels, grown]
