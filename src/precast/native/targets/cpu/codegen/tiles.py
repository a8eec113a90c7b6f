"""Loops that read along one direction of memory and write along another.

Before::

    for i: for j: result[i * 64 + j] = exp(x[j * 1024 + i])

After, for tiles of both loops::

    turn(&x[j_block * 1024 + i_block], 1024, …, x_tile)
    for i: for j: result[i * 64 + j] = exp(x_tile[(i - i_block) * TILE + j - j_block])

Reading what is far apart fills no vector; a tile is read along memory, turned in registers, and computed from along
the other direction.

How much there is to do in a loop, and whether that pays for several threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Variable, coefficient_of, constant, product
from precast.native.loops.program import (
    Loop,
    Statement,
    Store,
    loads_of,
    statement_values,
    statements_of,
    stores_of,
    values_of,
)
from precast.native.loops.scalars import LIGHT, Apply, Load, Scalar, walk
from precast.native.targets.cpu.codegen.types import MEMORY_TYPES, Namer, index_text

TILE = 32
"""How many iterations of either loop run together."""
SHORTEST = 16
"""A loop with fewer iterations is no direction to write along."""
_NEAR = (constant(0), constant(1), None)


@dataclass(frozen=True)
class Crossing:
    """Two loops of a plain nest: what is written runs along `last`, some of what is read along `across`."""

    across: Variable
    last: Variable


def crossing(loop: Loop) -> Crossing | None:
    """The two directions of a plain nest, if both are long."""
    if len(loop.variables) < 2 or loop.accumulators or any(isinstance(each, Loop) for each in statements_of(loop.body)):
        return None
    stores = stores_of(loop.body)
    if not all(store.is_plain for store in stores):
        return None
    is_long = [each for each in loop.variables if each.extent.constant is None or each.extent.constant > SHORTEST]
    written = [store.buffer.offset(store.indices) for store in stores]
    read = [load.buffer.offset(load.indices) for load in loads_of(loop.body)]
    for last in reversed(is_long):
        if all(coefficient_of(offset, last) == constant(1) for offset in written):
            far = [offset for offset in read if coefficient_of(offset, last) not in _NEAR]
            found = (each for each in is_long if any(coefficient_of(offset, each) == constant(1) for offset in far))
            across = next(found, None)
            return None if across is None else Crossing(across, last)
    return None


def turned_loads(loop: Loop, directions: Crossing) -> list[tuple[Buffer, Index]]:
    """What is read along `across` wherever the loops go, by buffer and place."""
    written = {store.buffer for store in stores_of(loop.body)}
    turned: dict[tuple[Buffer, Index], None] = {}
    for load in loads_of(loop.body):
        offset = load.buffer.offset(load.indices)
        is_whole = load.guard is None and not offset.computed and load.buffer not in written
        is_along = coefficient_of(offset, directions.across) == constant(1)
        if is_whole and is_along and coefficient_of(offset, directions.last) not in _NEAR:
            turned[load.buffer, offset] = None
    return list(turned)


@dataclass(frozen=True)
class Tiles:
    """Writes the inside of a tile; `blocks` names where each loop's tile starts."""

    directions: Crossing
    blocks: dict[Variable, str]
    pointers: dict[Buffer, str]

    def read(self, loop: Loop, namer: Namer) -> tuple[list[str], dict[tuple[Buffer, Index], str]]:
        """Lines that turn what is along `across` into local arrays, and where each element is then."""
        lines: list[str] = []
        elements: dict[tuple[Buffer, Index], str] = {}
        across, last = (
            f"({each.name} - {self.blocks[each]})" for each in (self.directions.across, self.directions.last)
        )
        for buffer, offset in turned_loads(loop, self.directions):
            tile = namer.fresh(f"{self.pointers[buffer]}_tile")
            elements[buffer, offset] = f"{tile}[{across} * {TILE} + {last}]"
            lines.append(f"alignas(64) {MEMORY_TYPES[buffer.dtype]} {tile}[{TILE * TILE}];")
            lines += ["{", *(f"    {line}" for line in self._turn(buffer, offset, tile, constant(TILE))), "}"]
        return lines, elements

    def copy(self, loop: Loop) -> list[str] | None:
        """A nest that only moves elements, and needs no memory between; None for any other."""
        match loop.body:
            case (Store(value=Load() as load) as store,) if store.guard is None and load.dtype == store.buffer.dtype:
                source = (load.buffer, load.buffer.offset(load.indices))
                offset = store.buffer.offset(store.indices)
                to_step = coefficient_of(offset, self.directions.across)
                if source in turned_loads(loop, self.directions) and to_step is not None:
                    return self._turn(*source, f"&{self.pointers[store.buffer]}[{index_text(offset)}]", to_step)
        return None

    def _turn(self, buffer: Buffer, offset: Index, to: str, to_step: Index) -> list[str]:
        loops = (self.directions.across, self.directions.last)
        starts = ", ".join(f"{each.name} = {self.blocks[each]}" for each in loops)
        counts = ", ".join(f"std::min<int64_t>({TILE}, {index_text(each.extent)} - {each.name})" for each in loops)
        step = coefficient_of(offset, self.directions.last)
        assert step is not None, "what is turned is linear in both loops"
        source = f"&{self.pointers[buffer]}[{index_text(offset)}], {index_text(step)}"
        call = f"precast::turn({source}, {counts}, {to}, {index_text(to_step)});"
        return [f"const int64_t {starts};", call]


PARALLEL_WORK = 32768
"""Loops of less work than this, in operations, run in one thread: starting the others costs more."""
_HEAVY_OPERATION = 16
_LIBRARY_VECTORS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erfc", "hypot", "log10", "log2", "pow",
    "sin", "sinh", "tan",
})  # fmt: skip
"""What the C library computes in vectors, and may give another last place one by one; see `precast_math.h`."""


def may_be_large(loop: Loop) -> bool:
    work = _work(loop).constant
    return work is None or work >= PARALLEL_WORK


def condition(loop: Loop) -> str:
    """OpenMP's condition on running in parallel, where it depends on sizes."""
    work = _work(loop)
    return "" if work.constant is not None else f" if ({index_text(work)} >= {PARALLEL_WORK})"


def _work(loop: Loop) -> Index:
    """Operations in all iterations, roughly."""
    return product(variable.extent for variable in loop.variables) * work_of(loop.body)


def work_of(body: tuple[Statement, ...]) -> Index:
    """Operations of statements that run once, roughly."""
    total = constant(0)
    for statement in body:
        values = () if isinstance(statement, Loop) else statement_values(statement)
        total = total + (_work(statement) if isinstance(statement, Loop) else sum(map(_value_work, values)))
    return total


def _value_work(value: Scalar) -> int:
    operations = [each.operation for each in walk(value) if isinstance(each, Apply)]
    return 1 + sum(1 if operation in LIGHT else _HEAVY_OPERATION for operation in operations)


def schedule(loop: Loop) -> str:
    """The clause by which threads share a loop: in whole vectors, where the rest would be computed otherwise."""
    values = walk(*values_of((loop,)))
    is_library = any(isinstance(value, Apply) and value.operation in _LIBRARY_VECTORS for value in values)
    return " schedule(simd : static, 1024)" if is_library else ""
