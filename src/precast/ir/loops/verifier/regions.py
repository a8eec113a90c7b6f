"""Which elements an access meets: all of a buffer, each once, or not."""

from __future__ import annotations

from collections.abc import Sequence

from precast.ir.loops.index import Index, Variable, coefficient_of, constant, product
from precast.ir.loops.remembering import remembered
from precast.ir.loops.verifier.accesses import Access
from precast.ir.loops.verifier.proofs import Facts, is_proved


def is_injective(offset: Index, variables: Sequence[Variable], others: Sequence[Variable] = ()) -> bool:
    """Whether it was proved that no two iterations of `variables` meet at one offset; `others` have ranges, too.

    As digits tell a number: each variable steps over all that the others with smaller steps reach together.
    """
    # Inside the loops, no range is empty.
    facts = (each.extent - 1 for each in (*variables, *others) if each.extent.constant is None)
    return _is_injective(offset, tuple(variables), tuple(dict.fromkeys(facts)))


# Loops that write a tensor in many pieces are asked about each pair of them.
@remembered
def _is_injective(offset: Index, variables: tuple[Variable, ...], facts: Facts) -> bool:
    steps: list[tuple[Variable, Index]] = []
    for variable in variables:
        if variable.extent == constant(1):
            continue
        step = coefficient_of(offset, variable)
        if step is None or any(coefficient_of(step, other) != constant(0) for other in variables):
            return False
        steps.append((variable, step))
    reached = constant(0)
    while steps:
        found = next(((variable, step) for variable, step in steps if step == reached + 1), None) or next(
            ((variable, step) for variable, step in steps if _is_smallest(step, steps)), None
        )
        if found is None or not is_proved(found[1] - reached - 1, facts):
            return False
        steps.remove(found)
        reached = reached + found[1] * (found[0].extent - 1)
    return True


def _is_smallest(step: Index, steps: Sequence[tuple[Variable, Index]]) -> bool:
    return all(other is step or is_proved(other - step) for _, other in steps)


def fills(access: Access) -> bool:
    """Whether it was proved that a store meets every element of its buffer, given that it stays inside."""
    iterations = product(variable.extent for variable in access.variables)
    return iterations == product(access.buffer.shape) and is_injective(access.offset, access.variables)
