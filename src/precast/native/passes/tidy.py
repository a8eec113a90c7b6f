"""Small passes around fusion: dead code elimination, store-to-load forwarding, loop interchange, names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Variable, atoms, coefficient_of, constant
from precast.native.loops.program import (
    Check,
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    all_steps,
    loads_of,
    parts_of,
    read_by,
    rewrite_statement,
    stores_of,
    variables_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import number_variables
from precast.native.loops.scalars import Constant, Load, Named, Scalar, apply


def remove_dead(program: LoopProgram) -> LoopProgram:
    """Dead code elimination: drop stores into buffers that nothing reads, and steps without any output left."""
    live, steps = set(program.outputs), list[Step]()
    for step in reversed(program.steps):
        if isinstance(step, Kernel):
            body = _live_part(step.body, live | _read_inside(step))
            if not body:
                continue
            step = step if len(written_by(step)) == len(_stored(body)) else replace(step, body=body)
        elif written_by(step) and not live & set(written_by(step)) and not _may_refuse(step):
            # A step without outputs is there for its effect.
            continue
        live |= set(read_by(step))
        steps.append(step)
    return with_steps(program, list(reversed(steps)))


def _may_refuse(step: Step) -> bool:
    """Whether parts of a step contain checks."""
    return any(isinstance(each, Check) for part in parts_of(step) for each in all_steps(part.program))


def forward_stores(program: LoopProgram) -> LoopProgram:
    """Store-to-load forwarding: within a loop body, use a value that was just stored instead of loading it again."""
    return _each_kernel(program, lambda kernel: _with_body(kernel, _forwarded(kernel.body, {})))


def order_loops(program: LoopProgram) -> LoopProgram:
    """Loop interchange: make the innermost loop of a plain nest contiguous, by the strides of the first store."""
    return _each_kernel(program, lambda kernel: _with_body(kernel, tuple(map(_ordered, kernel.body))))


def tidy_names(program: LoopProgram) -> LoopProgram:
    """Number the loop variables of every kernel from the outside in."""
    return _each_kernel(program, number_variables)


def _each_kernel(program: LoopProgram, change: Callable[[Kernel], Kernel]) -> LoopProgram:
    return with_steps(program, [change(step) if isinstance(step, Kernel) else step for step in program.steps])


def _with_body(kernel: Kernel, body: tuple[Statement, ...]) -> Kernel:
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _ordered(statement: Statement) -> Statement:
    if not isinstance(statement, Loop) or statement.accumulators:
        return statement
    store = next((each for each in statement.body if isinstance(each, Store)), None)
    if store is None:
        return statement
    offset = store.buffer.offset(store.indices)
    along = [each for each in statement.variables if coefficient_of(offset, each) == constant(1)]
    if any(isinstance(each, Loop) for each in statement.body) and not _reads_along(statement, along):
        return statement
    variables = (*(each for each in statement.variables if each not in along), *along)
    return statement if variables == statement.variables else replace(statement, variables=variables)


def _reads_along(loop: Loop, variables: list[Variable]) -> bool:
    """Whether all new loads of inner loops are contiguous along one of the variables."""
    inner = [each for each in loop.body if isinstance(each, Loop)]
    inside = {variable for each in inner for variable in variables_of((each,))}
    offsets = [load.buffer.offset(load.indices) for load in loads_of(tuple(inner))]
    changing = [offset for offset in offsets if inside & atoms(offset)]
    return any(all(coefficient_of(offset, each) == constant(1) for offset in changing) for each in variables)


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
    # Accumulating alone has no effect without a store somewhere around it.
    if isinstance(statement, Loop):
        return bool(_stored(statement.body)) or (bool(statement.accumulators) and len(kept) > 1)
    return True


def _forwarded(body: tuple[Statement, ...], known: dict[tuple[Buffer, object], Scalar]) -> tuple[Statement, ...]:

    def change(value: Scalar) -> Scalar:
        stored = known.get((value.buffer, value.indices)) if isinstance(value, Load) else None
        if stored is None or not isinstance(value, Load):
            return value
        return stored if value.guard is None else apply("where", value.guard, stored, Constant(0, value.dtype))

    # Subscripts do not tell which elements a scatter writes.
    scattered = {store.buffer for store in stores_of(body) if not store.is_plain}
    known = {place: value for place, value in known.items() if place[0] not in scattered}
    statements: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            inner = _forwarded(statement.body, known)
            same = all(before is after for before, after in zip(statement.body, inner, strict=True))
            statements.append(statement if same else replace(statement, body=inner))
            continue
        statement = rewrite_statement(statement, change, {})
        if isinstance(statement, Store) and statement.buffer not in scattered:
            known[statement.buffer, statement.indices] = Named(statement.buffer.name, statement.value)
        statements.append(statement)
    return tuple(statements)
