"""Rematerialization: loops recompute what their own kernel would otherwise store and load.

Before::

    for i0 < 512:
      for i1 < 768:  power[i0, i1] = exp(x[i0, i1] - top);  total <- sum power
      for i1 < 768:  y[i0, i1] = power[i0, i1] / total

After::

    for i0 < 512:
      for i1 < 768:  total <- sum exp(x[i0, i1] - top)
      for i1 < 768:  y[i0, i1] = exp(x[i0, i1] - top) / total

On a GPU arithmetic costs less than memory. If a program holds the row in registers, it is not even computed twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Atom, Index, Variable, atom
from precast.native.loops.program import (
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Store,
    read_by,
    rewrite_statement,
    stores_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import substitute_scalar
from precast.native.loops.scalars import Load, Named, Scalar


def compute_again(program: LoopProgram) -> LoopProgram:
    """Replace loads of buffers that only the same kernel reads by the stored values."""
    users = Counter(buffer for step in program.steps for buffer in {*read_by(step), *written_by(step)})
    users.update(program.outputs)
    users.update(program.inputs)
    steps = [
        _recomputed(step, {each for each in step.written if users[each] == 1}) if isinstance(step, Kernel) else step
        for step in program.steps
    ]
    return with_steps(program, steps)


def _recomputed(kernel: Kernel, own: set[Buffer]) -> Kernel:
    body = tuple(_with_rows(each, own) if isinstance(each, Loop) else each for each in kernel.body)
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _with_rows(loop: Loop, own: set[Buffer]) -> Loop:
    body = _Rows(loop.variables, own).statements(loop.body)
    return loop if body == loop.body else replace(loop, body=body)


class _Rows:
    """What the inner loops of one outermost iteration have stored so far."""

    def __init__(self, variables: tuple[Variable, ...], own: set[Buffer]):
        self.variables, self.own = variables, own
        self.stored: dict[Buffer, Store] = {}

    def statements(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for statement in body:
            new = self.statement(statement)
            done.append(new)
            if isinstance(new, Loop) and not any(isinstance(each, Loop) for each in new.body):
                for store in new.stores:
                    self.remember(new, store.buffer)
        return tuple(done)

    def remember(self, loop: Loop, buffer: Buffer) -> None:
        stores = [each for each in stores_of(loop.body) if each.buffer == buffer]
        if buffer not in self.own or len(stores) != 1 or not stores[0].is_plain:
            return
        if all(_variable_of(index) is not None or index.constant is not None for index in stores[0].indices):
            self.stored[buffer] = stores[0]

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            body = tuple(map(self.statement, statement.body))
            same = all(before is after for before, after in zip(statement.body, body, strict=True))
            return statement if same else replace(statement, body=body)
        return rewrite_statement(statement, self.change, {})

    def change(self, value: Scalar) -> Scalar:
        if not isinstance(value, Load) or value.buffer not in self.stored or value.guard is not None:
            return value
        store = self.stored[value.buffer]
        bindings: dict[Atom, Index] = {}
        for written, read in zip(store.indices, value.indices, strict=True):
            variable = _variable_of(written)
            if variable is None:
                if written != read:
                    return value
            elif variable in self.variables:
                if read != atom(variable):
                    return value
            elif bindings.setdefault(variable, read) != read:
                return value
        return Named(store.buffer.name, substitute_scalar(store.value, bindings))


def _variable_of(index: Index) -> Variable | None:
    match index.terms:
        case (((Variable() as variable,), 1),):
            return variable
    return None
