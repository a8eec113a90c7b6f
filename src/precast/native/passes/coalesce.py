"""Copy elimination: compute results in the buffer where they end up.

Before::

    t = matmul(…)
    for i0, i1:  s[i0, i1] = 0;  for j, i1:  s[{row[j]}, i1] <- sum g[j, i1]
    for i0, i1:  result[i0, i1] = t[i0, i1] + s[i0, i1]

After::

    result = matmul(…)
    for j, i1:  result[{row[j]}, i1] <- sum g[j, i1]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import product
from precast.native.loops.program import (
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    loads_of,
    reader_counts,
    stores_of,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import replace_buffers
from precast.native.loops.scalars import Apply, Constant, Load, Scalar, walk
from precast.native.passes.inline import Definition, definition_of, strip_names


def scatter_onto(program: LoopProgram) -> LoopProgram:
    """Where the result of a scatter-add is added to something, scatter directly onto that."""
    readers = reader_counts(program)
    sums = {each.written[0]: each for each in program.steps if isinstance(each, Kernel) and _starts_at_zero(each)}
    steps: list[Step] = []
    for step in program.steps:
        found = _added(step, sums, readers) if isinstance(step, Kernel) else None
        if found is None or not isinstance(step, Kernel):
            steps.append(step)
            continue
        definition, other, total = found
        scattered = sums[total]
        steps.remove(scattered)
        start = _with_value(step, other)
        rest = replace_buffers(scattered.body[1:], {total: definition.buffer})
        origins = tuple(dict.fromkeys((*scattered.origins, *step.origins)))
        steps.append(Kernel(step.name, (*start, *rest), origins))
    return with_steps(program, steps)


def _starts_at_zero(kernel: Kernel) -> bool:
    """Whether the kernel sets one buffer to 0 and then accumulates into it, and does nothing else."""
    first = definition_of(replace(kernel, body=kernel.body[:1])) if len(kernel.body) > 1 else None
    if first is None or len(kernel.written) != 1 or kernel.written[0] in kernel.read:
        return False
    if any(store.combine != "sum" for store in stores_of(kernel.body[1:])):
        return False
    value = strip_names(first.value)
    return isinstance(value, Constant) and value.value == 0


def _added(
    kernel: Kernel, sums: dict[Buffer, Kernel], readers: Counter[Buffer]
) -> tuple[Definition, Scalar, Buffer] | None:
    """If a kernel adds a buffer that nothing else reads to another value: the definition, that value, the buffer."""
    definition = definition_of(kernel)
    value = strip_names(definition.value) if definition is not None else None
    if definition is None or not isinstance(value, Apply) or value.operation != "add":
        return None
    for mine, other in (value.arguments, reversed(value.arguments)):
        total = _whole_load(mine, kernel)
        if total is None or total not in sums or readers[total] != 1:
            continue
        if total.is_laid_out_like(definition.buffer) and not _reads(other, total):
            return definition, other, total
    return None


def _reads(value: Scalar, buffer: Buffer) -> bool:
    return any(isinstance(part, Load) and part.buffer == buffer for part in walk(value))


def _whole_load(value: Scalar, kernel: Kernel) -> Buffer | None:
    """The buffer that `value` loads, if each iteration loads the element that it writes."""
    load, store = strip_names(value), _only_store(kernel.body)
    if isinstance(load, Load) and load.guard is None and load.indices == store.indices:
        return load.buffer
    return None


def _only_store(body: tuple[Statement, ...]) -> Store:
    (statement,) = body
    (store,) = statement.body if isinstance(statement, Loop) else (statement,)
    assert isinstance(store, Store)
    return store


def _with_value(kernel: Kernel, value: Scalar) -> tuple[Statement, ...]:
    (statement,) = kernel.body
    store = replace(_only_store(kernel.body), value=value)
    return (replace(statement, body=(store,)) if isinstance(statement, Loop) else store,)


@dataclass(frozen=True)
class _Copy:
    source: Buffer
    target: Buffer


def write_in_place(program: LoopProgram) -> LoopProgram:
    """Where all of a temporary is first copied, let its producer write the copy."""
    temporaries, readers = set(program.temporaries), reader_counts(program)
    made_by_calls = {each for step in program.steps if isinstance(step, LibraryCall) for each in written_by(step)}
    targets: dict[Buffer, Buffer] = {}
    for step in program.steps:
        copy = _copy_in(step) if isinstance(step, Kernel) else None
        if copy is not None and readers[copy.source] == 1 and copy.source in temporaries & made_by_calls:
            targets[copy.source] = copy.target
    if not targets:
        return program
    steps = [_redirected(step, targets) for step in program.steps]
    return with_steps(program, [step for step in steps if step is not None])


def _copy_in(kernel: Kernel) -> _Copy | None:
    """The copy at the beginning of a kernel, if the kernel reads its source nowhere else."""
    first = kernel.body[:1]
    definition = definition_of(replace(kernel, body=first))
    load = strip_names(definition.value) if definition is not None else None
    if not isinstance(load, Load) or load.guard is not None or not _has_same_place(load, _only_store(first)):
        return None
    is_read_again = any(each.buffer == load.buffer for each in loads_of(kernel.body[1:]))
    return None if is_read_again else _Copy(load.buffer, _only_store(first).buffer)


def _has_same_place(load: Load, store: Store) -> bool:
    """Whether the copy keeps the offset of each element, whatever the shapes."""
    source, target = load.buffer, store.buffer
    is_as_large = (source.dtype, source.byte_size) == (target.dtype, target.byte_size)
    has_as_many = product(source.shape) == product(target.shape)
    return is_as_large and has_as_many and source.offset(load.indices) == target.offset(store.indices)


def _redirected(step: Step, targets: dict[Buffer, Buffer]) -> Step | None:
    if isinstance(step, LibraryCall):
        views = tuple(replace(view, buffer=targets.get(view.buffer, view.buffer)) for view in step.outputs)
        return step if views == step.outputs else replace(step, outputs=views)
    copy = _copy_in(step) if isinstance(step, Kernel) else None
    if copy is None or targets.get(copy.source) != copy.target or not isinstance(step, Kernel):
        return step
    return replace(step, body=step.body[1:]) if len(step.body) > 1 else None
