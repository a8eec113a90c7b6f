"""What a kernel reads and writes, with the loops around each access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, Variable
from precast.ir.loops.program import Kernel, Loop, Statement, Store, statement_values
from precast.ir.loops.scalars import Load, walk


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store: the loops around it, and its place among the statements, outermost first."""

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
    """All loads and stores that are ever made; of one statement, the loads first.

    What the statements of a loop load from the same place is there once, where the first of them is.
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
