"""Grouped-query attention: read keys and values shared by several heads without repeating them.

Before::

    for i0, i1 < 32, i2, i3:  repeated[i0, i1, i2, i3] = keys[i0, i1 // 4, i2, i3]
    call attention: … = attention(query: f32[1, 32, 1, 128], repeated: f32[1, 32, 1024, 128], …)

After::

    call attention: … = attention(query: f32[1, 32, 1, 128], keys: f32[1, 8, 1024, 128], …)
"""

from __future__ import annotations

from dataclasses import replace

from precast.native.loops.buffers import Buffer, View, whole
from precast.native.loops.index import (
    Index,
    Quotient,
    Variable,
    atom,
    atoms,
    coefficient_of,
    constant,
    floor_divide,
    substitute,
)
from precast.native.loops.program import Kernel, LibraryCall, LoopProgram, Step, with_steps
from precast.native.loops.scalars import Load
from precast.native.passes.inline import Definition, definition_of, strip_names


def read_shared_heads(program: LoopProgram) -> LoopProgram:
    """Pass unrepeated keys and values to attention; loops that are no longer read are removed later."""
    if not any(isinstance(step, LibraryCall) and step.routine == "attention" for step in program.steps):
        return program
    definitions: dict[Buffer, Definition] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            definition = definition_of(step)
            if definition is not None and len(definition.buffer.shape) == 4:
                definitions[definition.buffer] = definition
        elif isinstance(step, LibraryCall) and step.routine == "attention":
            shared = [_shared(view, definitions.get(view.buffer)) for view in step.inputs[1:3]]
            # Keys and values must have equally many heads.
            if shared[0] is not None and shared[1] is not None and shared[0].shape[1] == shared[1].shape[1]:
                step = replace(step, inputs=(step.inputs[0], shared[0], shared[1], *step.inputs[3:]))
        steps.append(step)
    return with_steps(program, steps)


def _shared(view: View, definition: Definition | None) -> View | None:
    """What a definition repeats for the heads of `view`; None if it does anything else."""
    load = None if definition is None else strip_names(definition.value)
    if definition is None or not isinstance(load, Load) or load.guard is not None or view != whole(definition.buffer):
        return None
    offset, heads = load.buffer.offset(load.indices), definition.variables[1]
    if heads is None or offset.computed or load.dtype != view.dtype:
        return None
    times = _times(offset, heads)
    if times is None:
        return None
    count = floor_divide(view.shape[1], times)
    group = Variable(f"{heads.name}_shared", count)
    offset = substitute(offset, {Quotient(atom(heads), constant(times)): atom(group)})
    variables = [group if each is heads else each for each in definition.variables]
    strides = [constant(0) if each is None else coefficient_of(offset, each) for each in variables]
    known = tuple(stride for stride in strides if stride is not None)
    start = substitute(offset, {each: constant(0) for each in variables if each is not None})
    if len(known) < len(strides) or start.constant is None or heads in atoms(offset):
        return None
    return View(load.buffer, (view.shape[0], count, *view.shape[2:]), known, start)


def _times(offset: Index, heads: Variable) -> int | None:
    """How many consecutive heads read the same."""
    divisions = [each for each in atoms(offset) if isinstance(each, Quotient)]
    found = {each.denominator.constant for each in divisions if each.numerator == atom(heads)}
    times = found.pop() if len(found) == 1 else None
    size = heads.extent.constant
    return times if times and size and size % times == 0 else None
