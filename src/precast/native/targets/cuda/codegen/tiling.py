"""How a loop nest is mapped to a GPU: how many iterations a Triton program takes, and how many warps it has.

The outermost loop's iterations, flattened, are divided into blocks (`x`), one for each program. Long inner loops are
vectorized (`r`): a program takes a whole row at once if it fits registers, or block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precast.native.loops.index import Index, Variable, atoms, coefficient_of, constant, product
from precast.native.loops.program import Loop, Statement, loads_of, statements_of, stores_of

MULTIPROCESSORS = 132
"""Of an H200; with fewer blocks, some are idle."""
SHORT = 16
"""Inner loops of up to this many iterations are sequential."""
WIDTH = 64
"""The number of adjacent iterations per program, where inner loops are strided in memory."""
LONGEST_ROW = 16384
"""The longest row that a program holds in registers."""
ROW_BLOCKS = (2048, 4096)
"""Longer rows are processed in blocks: of so many elements up to `LONG_ROW`, then of so many."""
LONG_ROW = 8192
_ELEMENTS = 8
"""Elements of a block per thread."""


@dataclass(frozen=True)
class Tiling:
    """Block sizes; an `r_block` of 0 means that inner loops are not vectorized.

    With `is_persistent`, a program holds each row at once, and `r_block` is ignored.
    """

    x_block: int
    r_block: int = 0
    is_persistent: bool = False
    warps: int = 4

    @property
    def is_row(self) -> bool:
        """Whether a program takes one iteration of the outermost loop."""
        return self.r_block > 0 and self.x_block == 1


def choose_tiling(variables: tuple[Variable, ...], body: tuple[Statement, ...]) -> Tiling:
    """Block sizes for a nest: loops over `variables` around `body`."""
    count = _hint(product(variable.extent for variable in variables))
    leaves = list(leaf_loops(body))
    lengths = [_length(leaf) for leaf in leaves]
    if not leaves or all(length is not None and length <= SHORT for length in lengths):
        return _flat(count, sum(length or 0 for length in lengths) + 1)
    longest = max(length or 1 << 20 for length in lengths)
    if _runs_along_outer(variables, leaves):
        return _columns(count, longest)
    fits = all(length is not None and length <= LONGEST_ROW // _weight(body) for length in lengths)
    return _rows(count, longest) if fits else Tiling(1, ROW_BLOCKS[longest > LONG_ROW], warps=8)


def leaf_loops(body: tuple[Statement, ...]) -> Iterator[Loop]:
    """The innermost loops."""
    for statement in statements_of(body):
        if isinstance(statement, Loop) and not any(isinstance(each, Loop) for each in statement.body):
            yield statement


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


def _hint(count: Index) -> int:
    return 1 << 24 if count.constant is None else count.constant


def _length(loop: Loop) -> int | None:
    return product(variable.extent for variable in loop.variables).constant


def _flat(count: int, work: int) -> Tiling:
    block = 1024 if work < 8 else 256
    while block > 128 and count < block * 2 * MULTIPROCESSORS:
        block //= 2
    return Tiling(min(block, max(1, power_of_two(count))), warps=max(1, min(4, block // 32 // 2)))


def _rows(count: int, length: int) -> Tiling:
    row = power_of_two(length)
    block = 1
    while row * block < 1024 and count > block * 2 * MULTIPROCESSORS:
        block *= 2
    total = row * block
    return Tiling(block, row, is_persistent=True, warps=max(1, min(16, total // (32 * _ELEMENTS))))


def _columns(count: int, length: int) -> Tiling:
    """Adjacent iterations of the outermost loop: a block is wide enough for whole lines of memory."""
    x_block = min(WIDTH, power_of_two(count))
    r_block = max(1, min(4096 // x_block, power_of_two(length)))
    return Tiling(x_block, r_block, warps=4 if x_block * r_block <= 2048 else 8)


def _weight(body: tuple[Statement, ...]) -> int:
    """How many rows a program holds at a time, rounded to powers of two of four."""
    rows = len({load.buffer for load in loads_of(body) if not load.buffer.is_one_number})
    return 1 if rows <= 4 else 2 if rows <= 10 else 4


def _runs_along_outer(variables: tuple[Variable, ...], leaves: list[Loop]) -> bool:
    """Whether most accesses of inner loops are contiguous along the outermost loop, and not along them."""
    score = 0
    for leaf in leaves:
        offsets = [load.buffer.offset(load.indices) for load in loads_of(leaf.body)]
        offsets += [store.buffer.offset(store.indices) for store in stores_of(leaf.body)]
        for offset in offsets:
            if any(variable in atoms(offset) for variable in leaf.variables):
                score -= any(coefficient_of(offset, each) == constant(1) for each in leaf.variables)
                score += any(coefficient_of(offset, each) == constant(1) for each in variables)
    return score > 0
