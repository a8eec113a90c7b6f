"""Split loops where views would divide in every iteration.

Before: ``for i0 < 768:  y[i0] = x[i0 // 64, i0 % 64]``, where `x` lies otherwise in memory
After:  ``for i0 < 12, i1 < 64:  y[i0*64 + i1] = x[i0, i1]``
"""

from __future__ import annotations

from dataclasses import replace

from precast.ir.loops.index import Index, Quotient, Remainder, Variable, atom, atoms
from precast.ir.loops.program import Kernel, Loop, LoopProgram, Statement, stores_of, with_steps
from precast.lower.collapse import divides, places_of, split_variable

SHORTEST = 8
"""Inner loops of fewer iterations than this are no better than a division."""


def split_loops(program: LoopProgram) -> LoopProgram:
    """Make every division by a number that divides a loop's range a loop of its own."""
    return with_steps(program, [_split(step) if isinstance(step, Kernel) else step for step in program.steps])


def _split(kernel: Kernel) -> Kernel:
    body = tuple(map(_visit, kernel.body))
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _visit(statement: Statement) -> Statement:
    if not isinstance(statement, Loop) or not all(store.is_plain for store in stores_of((statement,))):
        return statement
    body = tuple(map(_visit, statement.body))
    if any(before is not after for before, after in zip(statement.body, body, strict=True)):
        statement = replace(statement, body=body)
    while found := _divided(statement):
        statement = split_variable(statement, *found)
    return statement


def _divided(loop: Loop) -> tuple[Variable, Index] | None:
    """A variable that is divided somewhere below, and by what."""
    for place in dict.fromkeys(places_of(loop.body)):
        # In an order that does not depend on hashes: the same program gives the same code in every process.
        for part in sorted(atoms(place), key=lambda each: each.text):
            if isinstance(part, Quotient | Remainder):
                for variable in loop.variables:
                    if part.numerator == atom(variable) and _pays(variable, part.denominator):
                        return variable, part.denominator
    return None


def _pays(variable: Variable, denominator: Index) -> bool:
    number = denominator.constant
    return (number is None or number >= SHORTEST) and divides(denominator, variable.extent)
