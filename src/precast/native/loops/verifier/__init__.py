"""Legality of loop programs, as a table of rules: what every pass must leave true.

==============  ========================================================================================
``structure``   types agree; accumulators are used by and after their loops
``bounds``      every load and store is inside its buffer, or is guarded
``dependences`` iterations, which run in any order, do not touch what others write
``calls``       routines get the types, shapes and views that they expect
``parts``       programs inside of steps are legal, and take and fill what the steps hand them
``lifetimes``   what is read was written; nothing is overwritten that is needed; arena places are apart
==============  ========================================================================================

``proofs`` finds out what holds for all variables and sizes; what it cannot prove, ``enumeration`` tries out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from types import MappingProxyType
from weakref import WeakSet

from precast.events import stage
from precast.native.loops.printer import print_step
from precast.native.loops.program import (
    Check,
    Kernel,
    KernelGroup,
    LibraryCall,
    LoopProgram,
    Plan,
    Repeat,
    Run,
    Step,
    parts_of,
)
from precast.native.loops.size_bounds import NO_BOUNDS, Bounds, with_own_bounds
from precast.native.loops.verifier.bounds import misused, outside
from precast.native.loops.verifier.calls import misfits
from precast.native.loops.verifier.dependences import conflicts
from precast.native.loops.verifier.enumeration import Sizes
from precast.native.loops.verifier.lifetimes import confused, examples_of, misordered, overlapping, unclear
from precast.native.loops.verifier.parts import cramped, mismatched

KERNEL_RULES: tuple[Callable[[Kernel, Sizes], Iterator[str]], ...] = (misused, outside, conflicts)
MOST_FAULTS = 8


class IllegalLoopProgramError(AssertionError):
    """A pass, or a lowering rule, made a program that must not run: a bug of ours, and no mistake of the user's."""


@stage
def verify_loops(
    program: LoopProgram, *, after: str, before: LoopProgram | None = None, around: Sizes = MappingProxyType({})
) -> None:
    """Raise if a rule is broken, naming what ran last; `before` is the program whose buffers were given to others.

    Of a part, `around` are examples of sizes of the programs around it.
    """
    examples = examples_of(program, around)
    for step in program.steps:
        for part in parts_of(step):
            verify_loops(part.program, after=after, around=examples)
        if step not in _right:
            _refuse(
                faults_of(step, examples), f"{program.name}, after {after}, at {step.name}", partial(print_step, step)
            )
            _right.add(step)
    _refuse(misordered(program, examples), f"{program.name}, after {after}")
    if before is not None:
        _refuse(confused(before, program), f"{program.name}, after {after}")


@stage
def verify_plan(program: LoopProgram, plan: Plan, bounds: Bounds = NO_BOUNDS) -> None:
    """Raise if buffers that live at the same time share memory, in the program or in parts of it."""
    _refuse(overlapping(program, plan, bounds), f"{program.name}, after planning memory")
    for step in program.steps:
        _refuse(cramped(step, bounds), f"{program.name}, after planning memory, at {step.name}")
        for part in parts_of(step):
            assert part.plan is not None, f"the memory of {part.program.name} was not planned"
            verify_plan(part.program, part.plan, with_own_bounds(bounds, part.program))


# Steps never change, and most of them outlive many passes.
_right: WeakSet[Step] = WeakSet()


def faults_of(step: Step, examples: Sizes) -> Iterator[str]:
    """The rules that one step breaks by itself."""
    match step:
        case Kernel():
            for rule in KERNEL_RULES:
                yield from rule(step, examples)
        case KernelGroup(_, members):
            for member in members:
                yield from faults_of(member, examples)
        case LibraryCall():
            yield from misfits(step, examples)
        case Check():
            yield from unclear(step)
        case Run() | Repeat():
            yield from mismatched(step)


def _refuse(faults: Iterable[str], where: str, text: Callable[[], list[str]] = list) -> None:
    found = list(islice(faults, MOST_FAULTS))
    if found:
        lines = [
            f"an illegal loop program ({where}):",
            *(f"  {each}" for each in found),
            *(f"    {each}" for each in text()),
        ]
        raise IllegalLoopProgramError("\n".join(lines))
