"""Fewer, larger loops: inline producers, merge loops, forget what nobody reads."""

from __future__ import annotations

from dataclasses import replace

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.program import Kernel, Loop, LoopProgram, Statement, Step, Store, read_by, written_by
from precast.ir.loops.rewriting import number_variables
from precast.ir.loops.scalars import Load, Named, Scalar, rewrite
from precast.lower.inline import inline_producers
from precast.lower.merge import merge_kernels


def fuse(program: LoopProgram) -> LoopProgram:
    """Run all fusing passes; what the program computes stays the same."""
    for fusing_pass in (inline_producers, remove_dead, merge_kernels, forward_stores, remove_dead, tidy_names):
        program = fusing_pass(program)
    return program


def remove_dead(program: LoopProgram) -> LoopProgram:
    """Drop stores into buffers that nobody reads, and steps that are left with nothing to write."""
    live, steps = set(program.outputs), list[Step]()
    for step in reversed(program.steps):
        if isinstance(step, Kernel):
            body = _live_part(step.body, live | _read_inside(step))
            if not body:
                continue
            step = step if len(written_by(step)) == len(_stored(body)) else replace(step, body=body)
        elif not live & set(written_by(step)):
            continue
        live |= set(read_by(step))
        steps.append(step)
    same = len(steps) == len(program.steps) and all(a is b for a, b in zip(reversed(steps), program.steps, strict=True))
    return program if same else replace(program, steps=tuple(reversed(steps)))


def forward_stores(program: LoopProgram) -> LoopProgram:
    """Within one loop body, use a value that was just stored instead of reading it back."""
    steps = tuple(
        replace(step, body=_forwarded(step.body, {}, {})) if isinstance(step, Kernel) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def tidy_names(program: LoopProgram) -> LoopProgram:
    steps = tuple(number_variables(step) if isinstance(step, Kernel) else step for step in program.steps)
    return replace(program, steps=steps)


def _read_inside(kernel: Kernel) -> set[Buffer]:
    return set(read_by(kernel)) & set(written_by(kernel))


def _stored(body: tuple[Statement, ...]) -> tuple[Buffer, ...]:
    return written_by(Kernel("", body))


def _live_part(body: tuple[Statement, ...], live: set[Buffer]) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            inner = _live_part(statement.body, live)
            if inner:
                kept.append(replace(statement, body=inner))
        elif not isinstance(statement, Store) or statement.buffer in live:
            kept.append(statement)
    return tuple(kept) if any(_has_effect(statement, kept) for statement in kept) else ()


def _has_effect(statement: Statement, kept: list[Statement]) -> bool:
    # Accumulating alone has no effect unless a store is left somewhere around it.
    if isinstance(statement, Loop):
        return bool(_stored(statement.body)) or (bool(statement.accumulators) and len(kept) > 1)
    return True


def _forwarded(
    body: tuple[Statement, ...], known: dict[tuple[Buffer, object], Scalar], memo: dict[int, Scalar]
) -> tuple[Statement, ...]:
    known = dict(known)

    def change(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.guard is None:
            return known.get((value.buffer, value.indices), value)
        return value

    statements: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            statements.append(replace(statement, body=_forwarded(statement.body, known, {})))
            continue
        statement = replace(statement, value=rewrite(statement.value, change, dict(memo)))
        if isinstance(statement, Store):
            known[statement.buffer, statement.indices] = Named(statement.buffer.name, statement.value)
        statements.append(statement)
    return tuple(statements)
