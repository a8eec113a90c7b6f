"""What a kernel reads and writes, with the loops around each access.

Also proves which elements an access covers: each at most once, or all of a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Variable, coefficient_of, constant, product
from precast.native.loops.memoize import remembered
from precast.native.loops.program import Kernel, Loop, Statement, Store, statement_values
from precast.native.loops.scalars import Load, walk
from precast.native.loops.verifier.proofs import Facts, is_proved


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store: the loops around it, and its position among the statements, outermost first."""

    what: Load | Store
    loops: tuple[Loop, ...]
    place: tuple[int, ...]

    @property
    def buffer(self) -> Buffer:
        return self.what.buffer

    @property
    def is_store(self) -> bool:
        return isinstance(self.what, Store)

    @cached_property
    def offset(self) -> Index:
        return self.buffer.offset(self.what.indices)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(variable for loop in self.loops for variable in loop.variables)

    @property
    def is_never(self) -> bool:
        """Whether a loop around it is empty."""
        return any(variable.extent.constant == 0 for variable in self.variables)

    def loops_with(self, other: Access) -> tuple[Loop, ...]:
        """The loops around both."""
        common: list[Loop] = []
        for mine, others in zip(self.loops, other.loops, strict=False):
            if mine is not others:
                break
            common.append(mine)
        return tuple(common)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.what.indices))}]"


@lru_cache(maxsize=256)
def accesses_of(kernel: Kernel) -> tuple[Access, ...]:
    """All loads and stores that may execute; of one statement, the loads first.

    Loads of one element by several statements of a loop are listed once, at the first of them.
    """
    found: dict[object, Access] = {}
    for each in _accesses(kernel.body, (), ()):
        if not each.is_never:
            found.setdefault(
                each if each.is_store else (each.buffer, each.what.indices, each.what.guard, each.loops), each
            )
    return tuple(found.values())


def _accesses(body: tuple[Statement, ...], loops: tuple[Loop, ...], place: tuple[int, ...]) -> Iterator[Access]:
    seen: set[int] = set()
    for number, statement in enumerate(body):
        here = (*place, number)
        if isinstance(statement, Loop):
            yield from _accesses(statement.body, (*loops, statement), here)
            continue
        for value in walk(*statement_values(statement), known=seen):
            seen.add(id(value))
            if isinstance(value, Load):
                yield Access(value, loops, here)
        if isinstance(statement, Store):
            yield Access(statement, loops, here)


def is_injective(offset: Index, variables: Sequence[Variable], others: Sequence[Variable] = ()) -> bool:
    """Whether no two iterations of `variables` were proved to share an offset; `others` vary independently.

    Like digits of a number: each variable's stride exceeds the reach of all variables with smaller strides.
    """
    # Inside a loop, its range is not empty.
    facts = (each.extent - 1 for each in (*variables, *others) if each.extent.constant is None)
    return _is_injective(offset, tuple(variables), tuple(dict.fromkeys(facts)))


# For a tensor that is written in many pieces, every pair of accesses asks this.
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
    """Whether it was proved that a store writes every element of its buffer, given that it stays in bounds."""
    iterations = product(variable.extent for variable in access.variables)
    return iterations == product(access.buffer.shape) and is_injective(access.offset, access.variables)
