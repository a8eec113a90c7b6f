"""Horizontal fusion: run kernels that do the same to different tensors as one launch, e.g. casts, optimizer updates.

Before::

    kernel cast:    for i0 < 589824:  w16[i0] = bf16(w[i0])
    call mm: …
    kernel cast_1:  for i0 < 2359296:  v16[i0] = bf16(v[i0])

After::

    group cast:  both
    call mm: …

A launch costs as much as moving ten megabytes. A kernel moves up to the group, or the group down to it, past
independent steps; at most `MOST` kernels form a group, so that lifetimes grow little.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from precast.native.loops.buffers import Buffer
from precast.native.loops.canonical import canonical_key, pattern_of
from precast.native.loops.program import (
    Fallible,
    Kernel,
    KernelGroup,
    Loop,
    LoopProgram,
    Step,
    Store,
    read_by,
    with_steps,
    written_by,
)

MOST = 16
FARTHEST = 200
"""A kernel moves past at most this many steps."""


@dataclass(eq=False)
class _Group:
    """Kernels that run together, at the position of the step with this number."""

    at: int
    members: list[Kernel] = field(default_factory=list)


def group_alike(program: LoopProgram) -> LoopProgram:
    """Group independent loops of the same pattern."""
    keys = [_key(step) if isinstance(step, Kernel) else None for step in program.steps]
    places: dict[int, Step | _Group] = {}
    open_groups: dict[str, _Group] = {}
    inputs = set(program.inputs)
    for number, (step, key) in enumerate(zip(program.steps, keys, strict=True)):
        if key is None or not isinstance(step, Kernel):
            places[number] = step
            continue
        group = open_groups.get(key)
        if group is not None and len(group.members) < MOST and number - group.at <= FARTHEST:
            between = [each for at in range(group.at + 1, number) for each in _steps_at(places, at)]
            if not any(_conflict(step, each, inputs) for each in between) and _are_independent(step, group):
                group.members.append(step)
                continue
            if not any(_conflict(each, other, inputs) for each in group.members for other in between) and (
                _are_independent(step, group)
            ):
                del places[group.at]
                group.at = number
                group.members.append(step)
                places[number] = group
                continue
        open_groups[key] = places[number] = _Group(number, [step])
    steps: list[Step] = []
    for _, place in sorted(places.items()):
        if not isinstance(place, _Group):
            steps.append(place)
        elif len(place.members) == 1:
            steps.append(place.members[0])
        else:
            steps.append(KernelGroup(place.members[0].name, tuple(place.members)))
    return with_steps(program, steps)


def _steps_at(places: dict[int, Step | _Group], at: int) -> list[Step]:
    found = places.get(at)
    return [] if found is None else list(found.members) if isinstance(found, _Group) else [found]


def _key(kernel: Kernel) -> str | None:
    """Equal for kernels that may be grouped, i.e. single plain loops over one variable."""
    match kernel.body:
        case (Loop((_,), body, ()),) if all(isinstance(each, Store) and each.is_plain for each in body):
            return canonical_key(pattern_of(kernel).kernel)
    return None


def _are_independent(kernel: Kernel, group: _Group) -> bool:
    written = {buffer for each in group.members for buffer in each.written}
    touched = written | {buffer for each in group.members for buffer in each.read}
    return touched.isdisjoint(kernel.written) and written.isdisjoint(kernel.read)


def _conflict(moved: Kernel, passed: Step, inputs: set[Buffer]) -> bool:
    """Whether a kernel and a step must keep their order."""
    read, written = set(read_by(passed)), set(written_by(passed))
    if not written.isdisjoint((*moved.read, *moved.written)) or not read.isdisjoint(moved.written):
        return True
    # An input is not overwritten before steps that may fail.
    return isinstance(passed, Fallible) and not inputs.isdisjoint(moved.written)
