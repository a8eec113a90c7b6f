"""Runs passes over loop programs: verifies the result of each, and notifies listeners."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from types import MappingProxyType

from precast.events import apply_pass, stage
from precast.native.loops.program import LoopProgram
from precast.native.loops.verifier import verify_loops
from precast.native.loops.verifier.enumeration import Sizes

LoopPass = Callable[[LoopProgram], LoopProgram]
"""Never changes its input; returns the same object when it changed nothing."""


@stage
def run_loop_passes(
    program: LoopProgram,
    passes: Sequence[LoopPass],
    *,
    reusing: Container[LoopPass] = (),
    verify: bool = True,
    around: Sizes = MappingProxyType({}),
) -> LoopProgram:
    """Apply the passes in order; with `verify`, a program that breaks a rule is an error that names the pass.

    `reusing` are the passes that reuse a buffer's memory: each step must still read the values it read before. For a
    part, `around` are example sizes of the enclosing programs.
    """
    if verify:
        verify_loops(program, after="lowering", around=around)
    for each in passes:
        before = program
        program = apply_pass(each, before)
        if verify and program is not before:
            verify_loops(program, after=each.__name__, before=before if each in reusing else None, around=around)
    return program
