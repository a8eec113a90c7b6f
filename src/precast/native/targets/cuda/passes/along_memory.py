"""Loop interchange for coalesced access: loops are ordered like memory, so that neighbouring threads access neighbours.

Before: ``for i0 < 16, i1 < 12, i2 < 512, i3 < 64:  y[…] = …`` with strides of y (393216, 64, 768, 1)
After:  ``for i0 < 16, i2 < 512, i1 < 12, i3 < 64:  y[…] = …``

Iterations have no order, so only the assignment of iterations to threads changes.
"""

from __future__ import annotations

from dataclasses import replace

from precast.native.loops.index import Index, Variable, coefficient_of
from precast.native.loops.program import Kernel, Loop, LoopProgram, Statement, loads_of, stores_of, with_steps


def run_along_memory(program: LoopProgram) -> LoopProgram:
    """Sort the variables of each loop by their stride in what it writes, or reads."""
    steps = [_sorted(step) if isinstance(step, Kernel) else step for step in program.steps]
    return with_steps(program, steps)


def _sorted(kernel: Kernel) -> Kernel:
    body = tuple(map(_visit, kernel.body))
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _visit(statement: Statement) -> Statement:
    if not isinstance(statement, Loop) or not all(store.is_plain for store in stores_of((statement,))):
        return statement
    body = tuple(map(_visit, statement.body))
    if any(before is not after for before, after in zip(statement.body, body, strict=True)):
        statement = replace(statement, body=body)
    place = _place(statement)
    if place is None or len(statement.variables) < 2:
        return statement
    variables = tuple(sorted(statement.variables, key=lambda each: -_step(place, each)))
    return statement if variables == statement.variables else replace(statement, variables=variables)


def _place(loop: Loop) -> Index | None:
    """The offset that the loop writes; in a reduction, the one with the most variables that it reads."""
    places = [store.buffer.offset(store.indices) for store in stores_of(loop.body)]
    if not places:
        places = [load.buffer.offset(load.indices) for load in loads_of(loop.body)]
    return max(places, key=lambda place: sum(_step(place, each) != 0 for each in loop.variables), default=None)


def _step(place: Index, variable: Variable) -> float:
    step = coefficient_of(place, variable)
    # A dynamic stride counts as a long one.
    return float("inf") if step is None or step.constant is None else abs(step.constant)
