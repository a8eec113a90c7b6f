"""How much there is to do in a loop, and whether that pays for several threads."""

from __future__ import annotations

from precast.codegen.cpp_types import index_text
from precast.ir.loops.index import Index, constant, product
from precast.ir.loops.program import Loop, Statement, statement_values, values_of
from precast.ir.loops.scalars import LIGHT, Apply, Scalar, walk

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
