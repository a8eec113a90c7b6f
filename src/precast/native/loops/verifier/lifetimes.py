"""Across steps: what is read was written, nothing live is overwritten, and live buffers do not share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Symbol, atoms, constant, product
from precast.native.loops.program import (
    Check,
    Kernel,
    KernelGroup,
    LibraryCall,
    LoopProgram,
    Plan,
    Step,
    read_by,
    stores_of,
    written_by,
)
from precast.native.loops.size_bounds import Bounds, upper_bound
from precast.native.loops.verifier.dependences import fully_written, unwritten
from precast.native.loops.verifier.enumeration import Grid, Sizes, sample_sizes


def examples_of(program: LoopProgram, around: Sizes = MappingProxyType({})) -> Sizes:
    """The traced values of dynamic sizes, with those around the program; of data-dependent ones, their bounds."""
    examples = {**around, **{each.symbol: each.example for each in program.sizes if each.example is not None}}
    for source in program.sizes:
        names = () if source.bound is None else {each.name for each in atoms(source.bound) if isinstance(each, Symbol)}
        if source.bound is not None and set(names) <= set(examples):
            examples[source.symbol] = Grid((), examples).number(source.bound)
    return examples


def misordered(program: LoopProgram, examples: Sizes) -> Iterator[str]:
    """Buffers that are read or returned before they are completely written, or written while they are live."""
    names: dict[str, Buffer] = {}
    for buffer in (*program.inputs, *program.outputs, *program.temporaries):
        if names.setdefault(buffer.name, buffer) != buffer:
            yield f"two buffers are called {buffer.name}"
    may_be_updated = {update.input for update in program.updates}
    state = _Written(program, examples)
    for step in program.steps:
        for kernel in _kernels(step):
            yield from (f"{step.name}: {each}" for each in unwritten(kernel, frozenset(state.whole), state.examples))
        for buffer in set(read_by(step)) - _made_by(step, state.whole):
            if not state.is_whole(buffer):
                yield f"{step.name} reads {buffer.name} before all of it is written"
        for buffer in dict.fromkeys(written_by(step)):
            if buffer in program.inputs and buffer not in may_be_updated:
                yield f"{step.name} writes the input {buffer.name}"
            if state.is_rewritten(step, buffer):
                yield f"{step.name} writes {buffer.name} once more"
        state.run(step)
    for buffer in program.outputs:
        if not state.is_whole(buffer):
            yield f"{buffer.name} is returned before all of it is written"


def _kernels(step: Step) -> tuple[Kernel, ...]:
    match step:
        case Kernel():
            return (step,)
        case KernelGroup(_, members):
            return members
    return ()


def _made_by(step: Step, whole: set[Buffer]) -> set[Buffer]:
    """Buffers that a kernel writes before it reads them: `unwritten` checks these."""
    return set(written_by(step)) - whole if isinstance(step, Kernel | KernelGroup) else set()


class _Written:
    """What has been written so far: whole buffers, and how many elements of others library calls wrote."""

    def __init__(self, program: LoopProgram, examples: Sizes):
        self.inputs = set(program.inputs)
        self.examples = examples
        self.whole = set(program.inputs)
        self.counts: dict[Buffer, Index] = {}

    def is_whole(self, buffer: Buffer) -> bool:
        return buffer in self.whole or any(size.constant == 0 for size in buffer.shape)

    def is_rewritten(self, step: Step, buffer: Buffer) -> bool:
        """Whether a step replaces a complete buffer, neither reading it for the last time nor updating parts of it."""
        stores = [store for kernel in _kernels(step) for store in stores_of(kernel.body) if store.buffer == buffer]
        changes = any(not store.is_plain for store in stores)
        return buffer in self.whole and buffer not in self.inputs and buffer not in read_by(step) and not changes

    def run(self, step: Step) -> None:
        match step:
            case Kernel() | KernelGroup():
                for kernel in _kernels(step):
                    self.whole.update(each for each in kernel.written if fully_written(kernel, each, self.examples))
            case LibraryCall(outputs=outputs):
                for view in outputs:
                    # Calls write disjoint parts: images of a batch.
                    self.counts[view.buffer] = self.counts.get(view.buffer, constant(0)) + product(view.shape)
                    if self.counts[view.buffer] == product(view.buffer.shape):
                        self.whole.add(view.buffer)
            case _:
                self.whole.update(written_by(step))


def confused(before: LoopProgram, after: LoopProgram) -> Iterator[str]:
    """Steps that read another step's values than before buffers were reused."""
    sources, results = _sources(before)
    new_sources, new_results = _sources(after)
    for step, writers in new_sources.items():
        if strangers := writers - sources.get(step, set()) - {step}:
            names = ", ".join(sorted(name for name, _ in strangers))
            yield f"{step[0]} reads what {names} wrote, which it did not before"
    updated = {update.result: update.input for update in before.updates}
    for place, (old, new) in enumerate(zip(before.results, after.results, strict=True)):
        if not isinstance(old, Buffer):
            continue
        kept = new if isinstance(new, Buffer) else updated.get(old)
        if kept is None or results.get(old) != new_results.get(kept):
            yield f"result {place}, {old.name}, is written by another step than before"


_StepName = tuple[str, int]


def _sources(program: LoopProgram) -> tuple[dict[_StepName, set[_StepName]], dict[Buffer, _StepName]]:
    """For each step, those that wrote what it reads; for each buffer, the step that wrote it last."""
    last: dict[Buffer, _StepName] = {buffer: (f"input {buffer.name}", 0) for buffer in program.inputs}
    seen, sources = Counter[str](), dict[_StepName, set[_StepName]]()
    for step in program.steps:
        name = step.name, seen[step.name]
        seen[step.name] += 1
        sources[name] = {last[buffer] for buffer in read_by(step) if buffer in last}
        last.update(dict.fromkeys(written_by(step), name))
    return sources, last


def overlapping(program: LoopProgram, plan: Plan, bounds: Bounds) -> Iterator[str]:
    """Temporaries that share memory while both are live, or that exceed the arena."""
    lives: dict[Buffer, tuple[int, int]] = {}
    temporaries = frozenset(program.temporaries)
    for number, step in enumerate(program.steps):
        for buffer in temporaries.intersection((*written_by(step), *read_by(step))):
            lives[buffer] = (lives.get(buffer, (number, number))[0], number)
    if missing := [each.name for each in lives if each not in plan.offsets]:
        yield f"{', '.join(missing)} got no place in the arena"
        return
    room = {each: upper_bound(each.byte_size, bounds) for each in lives}
    parts = (plan.arena_size, *(part for each in lives for part in (plan.offsets[each], room[each])))
    symbols = sorted({each.name for part in parts for each in atoms(part) if isinstance(each, Symbol)})
    for sizes in sample_sizes(symbols, examples_of(program)):
        grid = Grid((), sizes)
        placed = sorted(((grid.number(plan.offsets[each]), grid.number(room[each]), each) for each in lives),
                        key=lambda place: place[:2])  # fmt: skip
        if any(start < 0 or start + size > grid.number(plan.arena_size) for start, size, _ in placed):
            yield "a buffer leaves the arena"
        for number, (start, size, buffer) in enumerate(placed):
            for other_start, other_size, other in placed[number + 1 :]:
                if other_start >= start + size:
                    break
                is_alive = lives[buffer][0] <= lives[other][1] and lives[other][0] <= lives[buffer][1]
                if is_alive and other_size:
                    yield f"{buffer.name} and {other.name} share memory while both are needed"


def unclear(check: Check) -> Iterator[str]:
    """Malformed checks: one must test one bool, and show a row of integers."""
    if check.failed.dtype != "bool" or not check.failed.is_one_number:
        yield f"{check.failed.name} is not one bool"
    shown = check.shown
    if shown is not None and (shown.dtype != "i64" or len(shown.shape) != 1 or not shown.is_contiguous):
        yield f"{shown.name} is not a row of integers"
