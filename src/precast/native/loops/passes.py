"""Runs passes over loop programs: times each, checks what came out, and tells who watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from precast.native.loops.printer import print_program
from precast.native.loops.program import LoopProgram
from precast.native.loops.verifier import verify_loops

LoopPass = Callable[[LoopProgram], LoopProgram]
"""Never changes its input; returns the same object when it had nothing to do."""


@dataclass(frozen=True)
class LoopPassRecord:
    """What one pass did, and how long it took; the texts are written when they are asked for."""

    name: str
    seconds: float
    before: LoopProgram
    after: LoopProgram

    @property
    def has_changed(self) -> bool:
        return self.after is not self.before

    @property
    def text_before(self) -> str:
        return print_program(self.before)

    @property
    def text_after(self) -> str:
        return print_program(self.after)


Watcher = Callable[[LoopPassRecord], None]


def run_loop_passes(
    program: LoopProgram,
    passes: Sequence[LoopPass],
    *,
    reusing: Container[LoopPass] = (),
    verify: bool = True,
    watch: Watcher | None = None,
) -> LoopProgram:
    """Apply the passes in order; with `verify`, a program that breaks a rule is an error that names the pass.

    `reusing` are those that give a buffer's memory to another: each step must still read what it read before.
    """
    if verify:
        verify_loops(program, after="lowering")
    for each in passes:
        before, started = program, time.perf_counter()
        program = each(before)
        seconds = time.perf_counter() - started
        if verify and program is not before:
            verify_loops(program, after=each.__name__, before=before if each in reusing else None)
        if watch is not None:
            watch(LoopPassRecord(each.__name__, seconds, before, program))
    return program
