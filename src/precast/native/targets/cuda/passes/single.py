"""Compute in single precision what is double only for the precision of long sums.

Before: ``total: f64 <- sum f64(x[i0, i1])``, ``mean: f64[8] = total / 768``
After:  ``total: f32 <- sum x[i0, i1]``, ``mean: f32[8] = total / 768``

Rules accumulate in double precision, which is free on CPUs. A GPU accumulates in many lanes, whose short sums are
combined as a tree, which loses little precision, as in eager. Doubles of the user's program are unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from precast.artifact.dtypes import DTYPES
from precast.native.loops.buffers import Buffer
from precast.native.loops.program import (
    Accumulate,
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Store,
    read_by,
    rewrite_statement,
    values_of,
    with_steps,
    written_by,
)
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Scalar,
    cast,
    walk,
)

_LARGEST = 3.4e38


def compute_in_single_precision(program: LoopProgram) -> LoopProgram:
    """Convert all doubles that are internal to kernels to single precision."""
    doubles = {each for each in program.temporaries if each.dtype == "f64"}
    kernels = {step for step in program.steps if isinstance(step, Kernel) and _may_be_single(step)}
    before = -1
    while before != len(doubles) + len(kernels):
        before = len(doubles) + len(kernels)
        others = (step for step in program.steps if step not in kernels)
        doubles -= {each for step in others for each in (*read_by(step), *written_by(step))}
        kernels = {step for step in kernels if all(each in doubles for each in _doubles_of(step))}
    narrow = {each: replace(each, dtype="f32") for each in doubles}
    steps = [
        _narrowed(step, narrow) if isinstance(step, Kernel) and step in kernels else step for step in program.steps
    ]
    return with_steps(program, steps)


def _doubles_of(kernel: Kernel) -> set[Buffer]:
    return {each for each in (*kernel.read, *kernel.written) if each.dtype == "f64"}


def _may_be_single(kernel: Kernel) -> bool:
    """Whether no subscript and no integer is computed from doubles, and no constant is too large."""
    for value in walk(*values_of(kernel.body)):
        if isinstance(value, Cast) and value.value.dtype == "f64" and not DTYPES[value.dtype].is_floating:
            return False
        if isinstance(value, Constant) and value.dtype == "f64" and _LARGEST < abs(value.value) < float("inf"):
            return False
    return True


def _narrowed(step: Kernel, buffers: dict[Buffer, Buffer]) -> Kernel:
    changes = _Narrowing(buffers)
    body = tuple(map(changes.statement, step.body))
    return replace(step, body=body) if changes.has_changed else step


class _Narrowing:
    def __init__(self, buffers: dict[Buffer, Buffer]):
        self.buffers = buffers
        self.sums: dict[Accumulator, Accumulator] = {}
        self.memo: dict[int, Scalar] = {}
        self.has_changed = False

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            accumulators = tuple(map(self.accumulator, statement.accumulators))
            return replace(statement, body=tuple(map(self.statement, statement.body)), accumulators=accumulators)
        changed = rewrite_statement(statement, self.change, self.memo)
        if isinstance(changed, Accumulate):
            accumulator = self.accumulator(changed.accumulator)
            return replace(changed, accumulator=accumulator, value=cast(changed.value, accumulator.dtype))
        return self.store(changed)

    def store(self, store: Store) -> Store:
        buffer = self.buffers.get(store.buffer, store.buffer)
        self.has_changed |= buffer is not store.buffer
        return replace(store, buffer=buffer, value=cast(store.value, buffer.dtype))

    def accumulator(self, accumulator: Accumulator) -> Accumulator:
        if accumulator.dtype != "f64":
            return accumulator
        self.has_changed = True
        return self.sums.setdefault(accumulator, replace(accumulator, dtype="f32"))

    def change(self, value: Scalar) -> Scalar:
        new = self.single(value)
        self.has_changed |= new is not value
        return new

    def single(self, value: Scalar) -> Scalar:
        match value:
            case Load(buffer, _, _) if buffer in self.buffers:
                return replace(value, buffer=self.buffers[buffer])
            case Accumulated(accumulator) if accumulator.dtype == "f64":
                return Accumulated(self.accumulator(accumulator))
            case Constant(number, "f64"):
                return Constant(number, "f32")
            case IndexValue(index, "f64"):
                return IndexValue(index, "f32")
            case Cast(inner, "f64"):
                return cast(inner, "f32")
            case Apply(operation, arguments, "f64"):
                return Apply(operation, arguments, "f32")
        return value
