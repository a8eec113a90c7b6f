"""Loop fission for GPUs: every kernel becomes one nest with enough independent outer iterations to fill the GPU.

Before::

    for i0 < 16:
      for i1 < 512, i2 < 64:  y[i0, i1, i2] = …
      for i1 < 8192:  total <- sum x[i0, i1]
      mean[i0] = total / 8192

After::

    for i0 < 16, i1 < 512, i2 < 64:  y[i0, i1, i2] = …
    for i0 < 16:  for i1 < 8192:  total <- sum x[i0, i1];  mean[i0] = total / 8192

Threads of one launch cannot wait for those of another. Code after a reduction stays with it if there are enough rows
to fill a GPU; otherwise the reduction's result goes through memory. Small kernels are left to a single program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from precast.native.loops.buffers import Buffer, contiguous_buffer
from precast.native.loops.index import Variable, atom, product
from precast.native.loops.program import (
    Accumulate,
    Kernel,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    accumulated_in,
    declared_in,
    loads_of,
    read_by,
    rewrite_statement,
    statements_of,
    stores_of,
    with_steps,
    written_by,
)
from precast.native.loops.scalars import Accumulated, Accumulator, Load, Scalar

FEW = 264
"""Fewer iterations of an outermost loop than this do not fill a GPU."""
LONG = 16384
"""Inner loops of more iterations than this are then worth a launch of their own."""
SMALL = 4096
"""Up to this many elements are left to one program, rather than several launches."""

Variables = tuple[Variable, ...]
Body = tuple[Statement, ...]


def one_nest_each(program: LoopProgram) -> LoopProgram:
    """Split kernels into launches."""
    names = {buffer.name for step in program.steps for buffer in (*read_by(step), *written_by(step))}
    names |= {buffer.name for buffer in program.inputs}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            steps += _Parting(step, names).kernels()
        else:
            steps.append(step)
    return with_steps(program, steps)


class _Parting:
    """Splits one kernel; results of accumulators that several launches need are stored in memory."""

    def __init__(self, kernel: Kernel, names: set[str]):
        self.kernel, self.names = kernel, names
        self.places: dict[Accumulator, tuple[Buffer, Variables]] = {}

    def kernels(self) -> Sequence[Kernel]:
        body = self.kernel.body
        if len(body) > 1 and _is_small(body):
            return [self.kernel]
        nests = list(self.nests((), body))
        if len(nests) == 1:
            return [self.kernel if nests[0] == body else replace(self.kernel, body=nests[0])]
        name = self.kernel.name
        return [
            replace(self.kernel, name=name if number == 0 else f"{name}_part{number}", body=nest)
            for number, nest in enumerate(nests)
        ]

    def nests(self, around: Variables, body: Body) -> Iterator[Body]:
        """The body, inside loops over `around`, as a sequence of nests."""
        groups = [body] if around and _is_one_launch(around, body) else self.grouped(around, body)
        for number, group in enumerate(groups):
            match group:
                case (Loop(variables, inner, ()),) if all(store.is_plain for store in stores_of(group)):
                    yield from self.nests((*around, *variables), inner)
                    continue
            later = {each for other in groups[number + 1 :] for each in accumulated_in(other)}
            kept = sorted((each for each in declared_in(group) if each in later), key=lambda each: each.name)
            # In this order: what is loaded from memory was stored there before.
            statements = (*map(self.with_loads, group), *(self.put(each, around) for each in kept))
            yield (Loop(around, statements),) if around else statements

    def grouped(self, around: Variables, body: Body) -> list[Body]:
        """Groups of statements: a loop alone, a reduction with the stores after it, or stores together."""
        groups: list[list[Statement]] = []
        for statement in chain.from_iterable(self.apart(around, each) for each in body):
            last = groups[-1][-1] if groups else None
            starts_new = (
                last is None
                or isinstance(statement, Loop)
                or (isinstance(last, Loop) and not last.accumulators)
                or _reads_loop(statement, groups[-1])
            )
            if starts_new:
                groups.append([])
            groups[-1].append(statement)
        return [tuple(group) for group in groups]

    def apart(self, around: Variables, statement: Statement) -> tuple[Statement, ...]:
        """Split a reduction that also writes into a loop that writes and one that reduces, which are tiled separately.

        Reductions nested in other reductions go through memory.
        """
        if not isinstance(statement, Loop) or not statement.accumulators:
            return (statement,)
        sums = tuple(each for each in statement.body if isinstance(each, Accumulate))
        writes = tuple(each for each in statement.body if not isinstance(each, Accumulate))
        if not writes or {each.accumulator for each in sums} != set(statement.accumulators):
            return (statement,)
        if accumulated_in(sums) & declared_in(writes):
            places = (*around, *statement.variables)
            at = tuple(map(atom, places))
            buffers = [self.buffer(each.accumulator, places) for each in sums]
            pairs = list(zip(sums, buffers, strict=True))
            writes += tuple(Store(buffer, at, each.value) for each, buffer in pairs)
            sums = tuple(Accumulate(each.accumulator, Load(buffer, at)) for each, buffer in pairs)
        return Loop(statement.variables, writes), Loop(statement.variables, sums, statement.accumulators)

    def put(self, accumulator: Accumulator, around: Variables) -> Store:
        buffer = self.buffer(accumulator, around)
        self.places[accumulator] = (buffer, around)
        return Store(buffer, tuple(map(atom, around)), Accumulated(accumulator))

    def buffer(self, accumulator: Accumulator, around: Variables) -> Buffer:
        """A new buffer, with an element for each iteration of the enclosing loops."""
        shape = tuple(variable.extent for variable in around)
        name, number = f"{self.kernel.name}_{accumulator.name}", 0
        while name in self.names:
            number += 1
            name = f"{self.kernel.name}_{accumulator.name}_{number}"
        self.names.add(name)
        return contiguous_buffer(name, accumulator.dtype, shape)

    def with_loads(self, statement: Statement) -> Statement:
        """The statement with values that were stored in memory loaded from there."""
        if isinstance(statement, Loop):
            body = tuple(map(self.with_loads, statement.body))
            is_same = all(before is after for before, after in zip(statement.body, body, strict=True))
            return statement if is_same else replace(statement, body=body)
        return rewrite_statement(statement, self.loaded, {})

    def loaded(self, value: Scalar) -> Scalar:
        if isinstance(value, Accumulated) and value.accumulator in self.places:
            buffer, around = self.places[value.accumulator]
            return Load(buffer, tuple(map(atom, around)))
        return value


def _is_one_launch(around: Variables, body: Body) -> bool:
    """Whether the whole body suits programs that each take one or several iterations of `around`."""
    loops = [each for each in body if isinstance(each, Loop)]
    if not all(store.is_plain for store in stores_of(body)):
        return True
    if not any(loop.accumulators for loop in loops):
        return not loops
    are_leaves = not any(isinstance(each, Loop) for loop in loops for each in loop.body)
    return are_leaves and not (_is_few(around) and len(body) > 1 and any(map(_is_long, loops)))


def _reads_loop(statement: Statement, group: Sequence[Statement]) -> bool:
    """Whether a statement reads what other threads write in a loop of the group."""
    written = {store.buffer for each in group if isinstance(each, Loop) for store in stores_of((each,))}
    return not written.isdisjoint(load.buffer for load in loads_of((statement,)))


def _is_small(body: Body) -> bool:
    total = 0
    for statement in body:
        if isinstance(statement, Loop):
            count = _work(statement)
            if count is None:
                return False
            total += count
    return total <= SMALL and all(store.is_plain for store in stores_of(body))


def _work(loop: Loop) -> int | None:
    """The iterations of a loop, with those inside."""
    count = product(variable.extent for variable in loop.variables).constant
    inner = [_work(each) for each in loop.body if isinstance(each, Loop)]
    if count is None or any(each is None for each in inner):
        return None
    return count * (1 + sum(each or 0 for each in inner))


def _is_few(variables: Variables) -> bool:
    count = product(variable.extent for variable in variables).constant
    return count is not None and count < FEW


def _is_long(statement: Statement) -> bool:
    loops = (each for each in statements_of((statement,)) if isinstance(each, Loop))
    counts = (product(variable.extent for variable in loop.variables).constant for loop in loops)
    return any(count is None or count >= LONG for count in counts)
