"""Legality of loop programs, as a table of rules: what every pass must preserve.

==============  ========================================================================================
``structure``   types agree; accumulators are used by and after their loops
``bounds``      every load and store is inside its buffer, or is guarded
``dependences`` iterations, which run in any order, do not access what others write
``calls``       routines receive the types, shapes and views that they expect
``parts``       nested programs are legal, and match the buffers of their steps
``lifetimes``   what is read was written; nothing live is overwritten; live buffers do not share the arena
==============  ========================================================================================

``proofs`` proves facts for all variables and sizes; what it cannot prove, ``enumeration`` tests exhaustively.
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
    """A pass or a lowering rule made a program that must not run: a bug of ours, not a mistake of the user's."""


@stage
def verify_loops(
    program: LoopProgram, *, after: str, before: LoopProgram | None = None, around: Sizes = MappingProxyType({})
) -> None:
    """Raise if a rule is broken, naming the last pass; `before` is the program before its buffers were reused.

    For a part, `around` are example sizes of the enclosing programs.
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
    """Raise if buffers that are live at the same time share memory, in the program or in its parts."""
    _refuse(overlapping(program, plan, bounds), f"{program.name}, after planning memory")
    for step in program.steps:
        _refuse(cramped(step, bounds), f"{program.name}, after planning memory, at {step.name}")
        for part in parts_of(step):
            assert part.plan is not None, f"the memory of {part.program.name} was not planned"
            verify_plan(part.program, part.plan, with_own_bounds(bounds, part.program))


# Steps are immutable, and most of them survive many passes.
_right: WeakSet[Step] = WeakSet()


def faults_of(step: Step, examples: Sizes) -> Iterator[str]:
    """The rules that one step breaks on its own."""
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
