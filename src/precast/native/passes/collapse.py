"""Loop collapsing: nested loops that traverse memory contiguously become one loop.

Before: ``for i0 < 28, i1 < 28:  y[i0, i1] = f(x[i0, i1])``
After:  ``for i0 < 784:  y[i0 // 28, i0 % 28] = f(x[i0 // 28, i0 % 28])``, whose addresses are plain: ``y + i0``

A long loop fills vectors that short ones do not, and nests over the same memory in different shapes become equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from precast.native.loops.index import Index, Variable, atom, coefficient_of, constant, floor_divide, remainder
from precast.native.loops.program import (
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    loads_of,
    stores_of,
    values_of,
    with_steps,
)
from precast.native.loops.rewriting import substitute_variables
from precast.native.loops.scalars import IndexValue, walk


def collapse_loops(program: LoopProgram) -> LoopProgram:
    """Collapse the loops of every kernel as far as its addresses allow."""
    return with_steps(program, [_collapsed(step) if isinstance(step, Kernel) else step for step in program.steps])


def _collapsed(kernel: Kernel) -> Kernel:
    body = tuple(map(_visit, kernel.body))
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _visit(statement: Statement) -> Statement:
    if not isinstance(statement, Loop):
        return statement
    body = tuple(map(_visit, statement.body))
    if any(before is not after for before, after in zip(statement.body, body, strict=True)):
        statement = replace(statement, body=body)
    # Iterations that write the same element keep their order.
    if len(statement.variables) < 2 or not all(store.is_plain for store in stores_of(statement.body)):
        return statement
    while pair := _joinable(statement):
        statement = _joined(statement, *pair)
    return statement


def _joinable(loop: Loop) -> tuple[Variable, Variable] | None:
    """An outer and an inner variable that can be collapsed into one."""
    if len(loop.variables) < 2:
        return None
    places = set(places_of(loop.body))
    for outer, inner in permutations(loop.variables, 2):
        if all(_continues(place, outer, inner) for place in places):
            return outer, inner
    return None


def places_of(body: tuple[Statement, ...]) -> Iterator[Index]:
    """Everything that depends on loop variables: addresses, and subscripts used as numbers."""
    for load in loads_of(body):
        yield load.buffer.offset(load.indices)
    for store in stores_of(body):
        yield store.buffer.offset(store.indices)
    for value in walk(*values_of(body)):
        if isinstance(value, IndexValue):
            yield value.index


def _continues(place: Index, outer: Variable, inner: Variable) -> bool:
    step = coefficient_of(place, inner)
    return step is not None and coefficient_of(place, outer) == step * inner.extent


def _joined(loop: Loop, outer: Variable, inner: Variable) -> Loop:
    joint = Variable(f"{outer.name}{inner.name}", outer.extent * inner.extent)
    position = atom(joint)
    bindings = {outer: floor_divide(position, inner.extent), inner: remainder(position, inner.extent)}
    variables = tuple(joint if each == inner else each for each in loop.variables if each != outer)
    return replace(loop, variables=variables, body=substitute_variables(loop.body, bindings))


def split_variable(loop: Loop, variable: Variable, inner_extent: Index) -> Loop:
    """Strip-mining: the loop with `variable` split in two, the inner of `inner_extent`, which divides its extent."""
    outer = Variable(f"{variable.name}.0", floor_divide(variable.extent, inner_extent))
    inner = Variable(f"{variable.name}.1", inner_extent)
    parts = {variable: (outer, inner)}
    variables = tuple(part for each in loop.variables for part in parts.get(each, (each,)))
    bindings = {variable: atom(outer) * inner_extent + atom(inner)}
    return replace(loop, variables=variables, body=substitute_variables(loop.body, bindings))


def divides(part: Index, whole: Index) -> bool:
    """Whether `whole` is a multiple of `part`, for all sizes."""
    return part != constant(0) and floor_divide(whole, part) * part == whole
