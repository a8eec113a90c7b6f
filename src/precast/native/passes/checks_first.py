"""Move checks before the updates of inputs: a call that fails then leaves its inputs unchanged.

Before::

    for …:  keys_new[…] = …               the new value of the input ``keys``
    check place_1: position < 1024
    for …:  values_new[…] = …

After::

    check place_1: position < 1024
    for …:  keys_new[…] = …
    for …:  values_new[…] = …

Checks that depend on loops alone move to the front, with those loops. For others, the updates are delayed.
"""

from __future__ import annotations

from dataclasses import replace

from precast.native.loops.buffers import Buffer
from precast.native.loops.program import Check, Fallible, Kernel, LoopProgram, Step, read_by, written_by


def checks_first(program: LoopProgram) -> LoopProgram:
    """Reorder steps so that checks come first and every update after everything that may fail."""
    if not program.updates:
        return program
    writers: dict[Buffer, list[int]] = {}
    for number, step in enumerate(program.steps):
        for buffer in written_by(step):
            writers.setdefault(buffer, []).append(number)
    first: set[int] = set()
    for number, step in enumerate(program.steps):
        if isinstance(step, Check):
            needed = _needed(number, program.steps, writers)
            first |= needed or set()
    order = sorted(range(len(program.steps)), key=lambda number: (number not in first, number))
    fallible = frozenset(step.name for step in program.steps if isinstance(step, Fallible))
    updates = tuple(replace(update, after=fallible) for update in program.updates)
    return replace(program, steps=tuple(program.steps[number] for number in order), updates=updates)


def _needed(check: int, steps: tuple[Step, ...], writers: dict[Buffer, list[int]]) -> set[int] | None:
    """The numbers of a check and of all steps that it depends on; None if one of these is not a loop."""
    found, left = set[int](), [check]
    while left:
        number = left.pop()
        if number in found:
            continue
        found.add(number)
        step = steps[number]
        if not isinstance(step, Kernel | Check):
            return None
        left += [each for buffer in read_by(step) for each in writers.get(buffer, ())]
    return found
