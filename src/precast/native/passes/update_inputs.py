"""In-place updates: write the new values of inputs over the old ones.

Before::

    for i0:  m_new[i0] = m[i0] * 0.9 + g[i0];  p_new[i0] = p[i0] - (m[i0] * 0.9 + g[i0])

After::

    for i0:  p[i0] = p[i0] - (m[i0] * 0.9 + g[i0]);  m[i0] = m[i0] * 0.9 + g[i0]

Readers of an old value come before the statement that overwrites it, or are that statement: stores of one loop, and
steps, are reordered for that. Where that is not possible the result remains a result, which the caller copies.

Of an input that is updated in part, only the changed elements are written.

Before: ``for i0 < 12, i1 < 1024, i2 < 768:  cache[i0, i1, i2] = where(i1 == 5, k[i0, i2], cache[i0, i1, i2])``
After:  ``for i0 < 12, i2 < 768:  cache[i0, 5, i2] = k[i0, i2]``

Conditions on one loop variable restrict the range of its loop; others become guards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precast.native.loops.buffers import Buffer
from precast.native.loops.program import (
    Fallible,
    InputUpdate,
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    loads_of,
    read_by,
    stores_of,
    written_by,
)
from precast.native.loops.rewriting import with_buffers
from precast.native.loops.scalars import Apply, Load, Scalar
from precast.native.passes.inline import strip_names
from precast.native.passes.loop_ranges import loops_within, ranges_of, where_holds
from precast.native.passes.memory import may_overwrite
from precast.native.rules.builder import is_dense
from precast.native.rules.conditions import all_of


def changes_alone(kernel: Kernel, update: InputUpdate) -> Kernel:
    """The kernel without the stores of unchanged elements, for writing into the input's memory."""
    match kernel.body:
        case (Loop(variables, (Store(guard=None, combine=None) as store,), ()),):
            value = strip_names(store.value)
        case _:
            return kernel
    if not isinstance(value, Apply) or value.operation != "where" or not _is_old(value.arguments[2], store, update):
        return kernel
    condition, new, _ = value.arguments
    ranges, left = ranges_of(condition, variables)
    if not left:
        new = where_holds(new, condition)
    guard = all_of(*left) if left else None
    body = loops_within((replace(store, value=new, guard=guard),), variables, ranges)
    return replace(kernel, body=body)


def _is_old(value: Scalar, store: Store, update: InputUpdate) -> bool:
    """Whether this loads the input's element at the position of the stored result."""
    load = strip_names(value)
    is_element = isinstance(load, Load) and (load.indices, load.guard) == (store.indices, None)
    return is_element and isinstance(load, Load) and (load.buffer, store.buffer) == (update.input, update.result)


def update_inputs(program: LoopProgram) -> LoopProgram:
    """Write as many results as possible into the inputs that they update."""
    order = _Steps(program.steps)
    done = {update.result: update.input for update in program.updates if _is_possible(update) and order.take(update)}
    if not done:
        return program
    results = tuple(None if isinstance(each, Buffer) and each in done else each for each in program.results)
    return replace(program, steps=tuple(order.steps), results=results)


def _is_possible(update: InputUpdate) -> bool:
    return update.result.is_laid_out_like(update.input) and is_dense(update.input.shape, update.input.strides)


class _Steps:
    """The program's steps, those that update inputs so far, and the numbers of the steps that access each buffer."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._number()

    def _number(self) -> None:
        self._readers: dict[Buffer, list[int]] = {}
        self._writers: dict[Buffer, list[int]] = {}
        for number, step in enumerate(self.steps):
            for buffers, numbers in ((read_by(step), self._readers), (written_by(step), self._writers)):
                for buffer in buffers:
                    numbers.setdefault(buffer, []).append(number)
        fallible = ((number, each) for number, each in enumerate(self.steps) if isinstance(each, Fallible))
        self._fallible = [(number, each.name) for number, each in fallible]

    def take(self, update: InputUpdate) -> bool:
        """Write a result into its input, if possible."""
        writers = self._writers.get(update.result, [])
        step = _in_place(self.steps[writers[0]], update) if len(writers) == 1 else None
        place = None if step is None else self._place_for(writers[0], update)
        if step is None or place is None:
            return False
        del self.steps[writers[0]]
        self.steps.insert(place, step)
        names = {update.result: update.input}
        for reader in self._readers.get(update.result, ()):
            self.steps[reader] = with_buffers(self.steps[reader], names)
        if place != writers[0]:
            self._number()
        else:
            self._readers.setdefault(update.input, []).extend(self._readers.pop(update.result, ()))
            self._writers[update.input] = self._writers.pop(update.result)
        return True

    def _place_for(self, writer: int, update: InputUpdate) -> int | None:
        """The position for the step: after all that read the old value, or may fail before it is overwritten."""
        before = [number for number, name in self._fallible if name in update.after]
        last: int = max([writer, *before, *self._readers.get(update.input, ())])
        step, passed = self.steps[writer], self.steps[writer + 1 : last + 1]
        reads, writes = set(read_by(step)), set(written_by(step))
        for other in passed:
            if not writes.isdisjoint((*read_by(other), *written_by(other))) or not reads.isdisjoint(written_by(other)):
                return None
        return last


def _in_place(step: Step, update: InputUpdate) -> Step | None:
    """The step with its result written into the input; None if it reads the old value too late."""
    names = {update.result: update.input}
    if isinstance(step, Fallible) or (isinstance(step, LibraryCall) and update.input in read_by(step)):
        return None
    if not isinstance(step, Kernel) or update.input not in step.read:
        return with_buffers(step, names)
    if update.input in step.written:
        return None
    if _copies_first(step.body, update) and not any(load.buffer == update.input for load in loads_of(step.body[1:])):
        return with_buffers(replace(step, body=step.body[1:]), names)
    for kernel in (changes_alone(step, update), step):
        kernel = replace(kernel, body=_store_last(kernel.body, update))
        if update.input not in kernel.read or may_overwrite(kernel, update.input, update.result):
            return with_buffers(kernel, names)
    return None


def _copies_first(body: tuple[Statement, ...], update: InputUpdate) -> bool:
    """Whether this begins by copying elements of the old value and then overwrites some of them."""
    match body:
        case (Loop(_, (Store(buffer, indices, value, None, None),), ()), _, *_):
            load = strip_names(value)
            is_old = isinstance(load, Load) and (load.buffer, load.indices, load.guard) == (update.input, indices, None)
            return buffer == update.result and is_old
    return False


def _store_last(body: tuple[Statement, ...], update: InputUpdate) -> tuple[Statement, ...]:
    """The statements with the result's store moved below all readers of the old value, if that is legal."""
    body = tuple(
        replace(each, body=_store_last(each.body, update)) if isinstance(each, Loop) else each for each in body
    )
    place = next((i for i, each in enumerate(body) if isinstance(each, Store) and each.buffer == update.result), None)
    if place is None:
        return body
    readers = [i for i, each in enumerate(body) if any(load.buffer == update.input for load in loads_of((each,)))]
    last = max(readers, default=place)
    store, passed = body[place], body[place + 1 : last + 1]
    own = {load.buffer for load in loads_of((store,))}
    for each in passed:
        is_read = any(load.buffer == update.result for load in loads_of((each,)))
        if is_read or not own.isdisjoint(other.buffer for other in stores_of((each,))):
            return body
    return (*body[:place], *passed, store, *body[last + 1 :]) if passed else body
