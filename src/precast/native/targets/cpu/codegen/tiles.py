"""Tiling: loops whose reads are contiguous along one variable and whose writes are along another.

Before::

    for i: for j: result[i * 64 + j] = exp(x[j * 1024 + i])

After, for tiles of both loops::

    turn(&x[j_block * 1024 + i_block], 1024, …, x_tile)
    for i: for j: result[i * 64 + j] = exp(x_tile[(i - i_block) * TILE + j - j_block])

Strided reads fill no vector; a tile is read contiguously, transposed in registers, and then read along the other
variable.

Also estimates the work of a loop, and whether it pays for several threads.
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
"""The number of iterations of either loop in a tile."""
SHORTEST = 16
"""A loop with fewer iterations is not tiled."""
_NEAR = (constant(0), constant(1), None)


@dataclass(frozen=True)
class Crossing:
    """Two loops of a plain nest: writes are contiguous along `last`, some reads along `across`."""

    across: Variable
    last: Variable


def crossing(loop: Loop) -> Crossing | None:
    """The two variables of a plain nest to tile, if both loops are long."""
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


def transposed_loads(loop: Loop, directions: Crossing) -> list[tuple[Buffer, Index]]:
    """The unconditional reads that are contiguous along `across`, by buffer and place."""
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
    """Writes the inside of a tile; `blocks` names the start of each loop's tile."""

    directions: Crossing
    blocks: dict[Variable, str]
    pointers: dict[Buffer, str]

    def read(self, loop: Loop, namer: Namer) -> tuple[list[str], dict[tuple[Buffer, Index], str]]:
        """Lines that transpose contiguous reads along `across` into local arrays, and the new place of each element."""
        lines: list[str] = []
        elements: dict[tuple[Buffer, Index], str] = {}
        across, last = (
            f"({each.name} - {self.blocks[each]})" for each in (self.directions.across, self.directions.last)
        )
        for buffer, offset in transposed_loads(loop, self.directions):
            tile = namer.fresh(f"{self.pointers[buffer]}_tile")
            elements[buffer, offset] = f"{tile}[{across} * {TILE} + {last}]"
            lines.append(f"alignas(64) {MEMORY_TYPES[buffer.dtype]} {tile}[{TILE * TILE}];")
            lines += ["{", *(f"    {line}" for line in self._turn(buffer, offset, tile, constant(TILE))), "}"]
        return lines, elements

    def copy(self, loop: Loop) -> list[str] | None:
        """The code for a nest that only copies, without local arrays; None for any other."""
        match loop.body:
            case (Store(value=Load() as load) as store,) if store.guard is None and load.dtype == store.buffer.dtype:
                source = (load.buffer, load.buffer.offset(load.indices))
                offset = store.buffer.offset(store.indices)
                to_step = coefficient_of(offset, self.directions.across)
                if source in transposed_loads(loop, self.directions) and to_step is not None:
                    return self._turn(*source, f"&{self.pointers[store.buffer]}[{index_text(offset)}]", to_step)
        return None

    def _turn(self, buffer: Buffer, offset: Index, to: str, to_step: Index) -> list[str]:
        loops = (self.directions.across, self.directions.last)
        starts = ", ".join(f"{each.name} = {self.blocks[each]}" for each in loops)
        counts = ", ".join(
            f"precast::minimum<int64_t>({TILE}, {index_text(each.extent)} - {each.name})" for each in loops
        )
        step = coefficient_of(offset, self.directions.last)
        assert step is not None, "what is transposed is linear in both loops"
        source = f"&{self.pointers[buffer]}[{index_text(offset)}], {index_text(step)}"
        call = f"precast::turn({source}, {counts}, {to}, {index_text(to_step)});"
        return [f"const int64_t {starts};", call]


PARALLEL_WORK = 32768
"""Loops of less work than this, in operations, run in one thread: starting others would cost more."""
_HEAVY_OPERATION = 16
_LIBRARY_VECTORS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erfc", "hypot", "log10", "log2", "pow",
    "sin", "sinh", "tan",
})  # fmt: skip
"""Vectorized by the C math library, whose scalar versions may differ in the last digit; see `precast_math.h`."""


def may_be_large(loop: Loop) -> bool:
    work = _work(loop).constant
    return work is None or work >= PARALLEL_WORK


def condition(loop: Loop) -> str:
    """OpenMP's condition for running in parallel, where it depends on sizes."""
    work = _work(loop)
    return "" if work.constant is not None else f" if ({index_text(work)} >= {PARALLEL_WORK})"


def _work(loop: Loop) -> Index:
    """An estimate of the operations in all iterations."""
    return product(variable.extent for variable in loop.variables) * work_of(loop.body)


def work_of(body: tuple[Statement, ...]) -> Index:
    """An estimate of the operations of statements that run once."""
    total = constant(0)
    for statement in body:
        values = () if isinstance(statement, Loop) else statement_values(statement)
        total = total + (_work(statement) if isinstance(statement, Loop) else sum(map(_value_work, values)))
    return total


def _value_work(value: Scalar) -> int:
    operations = [each.operation for each in walk(value) if isinstance(each, Apply)]
    return 1 + sum(1 if operation in LIGHT else _HEAVY_OPERATION for operation in operations)


def schedule(loop: Loop) -> str:
    """The clause that distributes a loop to threads in whole vectors, where scalar code would compute other digits."""
    values = walk(*values_of((loop,)))
    is_library = any(isinstance(value, Apply) and value.operation in _LIBRARY_VECTORS for value in values)
    return " schedule(simd : static, 1024)" if is_library else ""
