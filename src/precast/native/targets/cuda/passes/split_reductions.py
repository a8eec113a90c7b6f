"""Split reductions: long reductions with few results run in parallel parts, which a second loop combines.

Before::

    for i0 < 768:  for r0 < 8192:  total <- sum x[r0, i0];   y[i0] = f(total)

After::

    for p < 64, i0 < 768:  for r0 < 128:  part <- sum x[p*128 + r0, i0];   parts[p, i0] = part
    for i0 < 768:  for p < 64:  total <- sum parts[p, i0];   y[i0] = f(total)

The number of parts depends on sizes alone, so results are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precast.native.loops.buffers import Buffer, contiguous_buffer
from precast.native.loops.index import Index, Variable, atom, constant, floor_divide, product, remainder
from precast.native.loops.program import (
    Accumulate,
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    read_by,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import substitute_variables
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Apply,
    Constant,
    IndexValue,
    Load,
    Scalar,
    apply,
    rewrite,
)
from precast.native.targets.cuda.codegen.reductions import neutral
from precast.native.targets.cuda.codegen.tiling import MULTIPROCESSORS, WIDTH

PROGRAMS = 16 * MULTIPROCESSORS
"""About this many programs keep a GPU busy: each waits for memory in every iteration of its loop."""
SHORTEST = 512
"""The minimal number of iterations of a part."""


def split_reductions(program: LoopProgram) -> LoopProgram:
    """Split reductions that would leave most of a GPU idle."""
    names = {buffer.name for step in program.steps for buffer in (*read_by(step), *written_by(step))}
    steps: list[Step] = []
    for step in program.steps:
        steps += _split(step, names) if isinstance(step, Kernel) else [step]
    return with_steps(program, steps)


def _split(kernel: Kernel, names: set[str]) -> Sequence[Kernel]:
    match kernel.body:
        case (Loop(variables, (Loop() as reduction, *rest), ()),):
            pass
        case (Loop(_, _, accumulators) as reduction, *rest) if accumulators:
            variables = ()
        case _:
            return [kernel]
    if not reduction.accumulators or any(isinstance(each, Loop) for each in rest):
        return [kernel]
    if not all(isinstance(each, Accumulate) for each in reduction.body):
        return [kernel]
    count = _parts(product(each.extent for each in variables), product(each.extent for each in reduction.variables))
    if count is None:
        return [kernel]
    parts, length = count
    first, buffers = _parts_kernel(kernel, variables, reduction, parts, length, names)
    return [first, _joining_kernel(kernel, variables, reduction, tuple(rest), parts, buffers)]


def _parts(rows: Index, length: Index) -> tuple[int, int] | None:
    """The number of parts and their length; None if one program per row suffices."""
    if rows.constant is None or length.constant is None:
        return None
    # Adjacent columns are processed in blocks.
    programs = max(1, rows.constant // WIDTH if rows.constant >= WIDTH else rows.constant)
    wanted = min(PROGRAMS // programs, length.constant // SHORTEST)
    if wanted < 2:
        return None
    parts = 1 << (wanted.bit_length() - 1)
    return parts, -(-length.constant // parts)


def _parts_kernel(
    kernel: Kernel, variables: tuple[Variable, ...], reduction: Loop, parts: int, length: int, names: set[str]
) -> tuple[Kernel, dict[Accumulator, Buffer]]:
    part, place = Variable("part", constant(parts)), Variable("place", constant(length))
    total = product(each.extent for each in reduction.variables)
    flat = atom(part) * length + atom(place)
    body: tuple[Statement, ...] = substitute_variables(reduction.body, _spread(reduction.variables, flat))
    if constant(parts * length) != total:
        is_inside = apply("lt", IndexValue(flat, "i64"), IndexValue(total, "i64"))
        body = tuple(_guarded(each, is_inside) for each in body if isinstance(each, Accumulate))
    shape = (constant(parts), *(each.extent for each in variables))
    buffers = {each: _buffer(kernel, each, shape, names) for each in reduction.accumulators}
    at = (atom(part), *map(atom, variables))
    stores = tuple(Store(buffer, at, Accumulated(each)) for each, buffer in buffers.items())
    outer = Loop((part, *variables), (Loop((place,), body, reduction.accumulators), *stores))
    return replace(kernel, name=f"{kernel.name}_parts", body=(outer,)), buffers


def _joining_kernel(
    kernel: Kernel,
    variables: tuple[Variable, ...],
    reduction: Loop,
    rest: tuple[Statement, ...],
    parts: int,
    buffers: dict[Accumulator, Buffer],
) -> Kernel:
    part = Variable("part", constant(parts))
    at = (atom(part), *map(atom, variables))
    body = tuple(Accumulate(each, Load(buffer, at)) for each, buffer in buffers.items())
    joined = (Loop((part,), body, reduction.accumulators), *rest)
    return replace(kernel, body=(Loop(variables, joined),) if variables else joined)


def _spread(variables: tuple[Variable, ...], flat: Index) -> dict[Variable, Index]:
    places: dict[Variable, Index] = {}
    for variable in reversed(variables[1:]):
        places[variable] = remainder(flat, variable.extent)
        flat = floor_divide(flat, variable.extent)
    return {**places, variables[0]: flat}


def _guarded(statement: Accumulate, is_inside: Scalar) -> Accumulate:
    """The statement with a guard where the last part exceeds the range."""

    def change(value: Scalar) -> Scalar:
        if not isinstance(value, Load):
            return value
        guard = is_inside if value.guard is None else Apply("logical_and", (value.guard, is_inside), "bool")
        return replace(value, guard=guard)

    accumulator = statement.accumulator
    nothing = Constant(neutral(accumulator), accumulator.dtype)
    return replace(statement, value=apply("where", is_inside, rewrite(statement.value, change, {}), nothing))


def _buffer(kernel: Kernel, accumulator: Accumulator, shape: tuple[Index, ...], names: set[str]) -> Buffer:
    name, number = f"{kernel.name}_{accumulator.name}_parts", 0
    while name in names:
        number += 1
        name = f"{kernel.name}_{accumulator.name}_parts_{number}"
    names.add(name)
    return contiguous_buffer(name, accumulator.dtype, shape)
