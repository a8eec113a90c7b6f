"""Nested programs match the buffers of their steps, and have enough scratch memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precast.native.loops.buffers import Buffer, whole
from precast.native.loops.index import Index, Symbol, atoms, constant, symbol
from precast.native.loops.program import (
    Kernel,
    KernelGroup,
    LibraryCall,
    LoopProgram,
    Part,
    Repeat,
    Run,
    Step,
    parts_of,
)
from precast.native.loops.size_bounds import Bounds, upper_bound, with_own_bounds
from precast.native.loops.verifier.accesses import Access, accesses_of
from precast.native.loops.verifier.calls import is_proved_inside
from precast.native.loops.verifier.enumeration import Grid, sample_sizes
from precast.native.loops.verifier.proofs import Facts, facts_of, is_proved


def mismatched(step: Run | Repeat) -> Iterator[str]:
    """Inputs and outputs of parts whose layout differs from their operands', and malformed choices."""
    if isinstance(step, Run):
        yield from _unclear_choice(step)
        for part in step.parts:
            yield from _differences(part.program, step.inputs, step.outputs)
        return
    carried = step.inputs[: step.carried]
    scanned, others = step.inputs[step.carried :][: step.scanned], step.inputs[step.carried + step.scanned :]
    rows, filled = ([step.row_of(each, each.name) for each in some] for some in (scanned, step.outputs[step.carried :]))
    for some in (step.outputs[: step.carried], step.spares):
        yield from _unlike("carried values", carried, some)
    touched = (*step.outputs, *step.spares)
    if len(set(touched)) != len(touched) or not set(touched).isdisjoint(step.inputs):
        yield "what is read is written, or written twice, while the body runs"
    yield from _differences(step.body.program, [*carried, *rows, *others], [*carried, *filled])
    if (step.count is None) != (len(step.parts) == 2):
        yield "the body runs either a number of times or while a condition holds"
    for each in (*scanned, *step.outputs[step.carried :]):
        if step.count is None or each.shape[0] != step.count:
            yield f"{each.name} has {each.shape[0]} rows for {step.count} iterations"
    for part in step.parts[1:]:
        flags = [Buffer("flag", "bool", (), ())]
        yield from _differences(part.program, [*carried, *others], flags)


def _unclear_choice(step: Run) -> Iterator[str]:
    if len(step.parts) != (1 if step.choice is None else 2):
        yield f"{len(step.parts)} parts to choose from"
    if step.choice is not None and (step.choice.dtype != "bool" or not step.choice.is_one_number):
        yield f"{step.choice.name} is not one bool"


def _differences(program: LoopProgram, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Iterator[str]:
    yield from _unlike(f"inputs of {program.name}", program.inputs, inputs)
    yield from _unlike(f"results of {program.name}", program.outputs, outputs)
    if program.written_inputs:
        yield f"{program.name} writes its inputs"
    for source in program.sizes:
        buffer = program.inputs[source.position]
        if source.dimension is not None or buffer.dtype != "i64" or not buffer.is_one_number:
            yield f"{buffer.name} is not one whole number, as the size {source.symbol} is"


def _unlike(what: str, mine: Sequence[Buffer], others: Sequence[Buffer]) -> Iterator[str]:
    if len(mine) != len(others):
        yield f"{what}: {len(mine)} where {len(others)} are handed over"
        return
    for own, other in zip(mine, others, strict=True):
        if not own.is_laid_out_like(other):
            yield f"{what}: {own.name} is laid out otherwise than {other.name}"


def cramped(step: Step, bounds: Bounds) -> Iterator[str]:
    """Parts whose temporaries exceed the scratch memory of their step."""
    for part in parts_of(step):
        needed = upper_bound(_arena_of(part), with_own_bounds(bounds, part.program))
        scratch = step.scratch if isinstance(step, Run | Repeat) else None
        room = constant(0) if scratch is None else scratch.byte_size
        symbols = sorted({each.name for size in (needed, room) for each in atoms(size) if isinstance(each, Symbol)})
        for sizes in sample_sizes(symbols, {}):
            grid = Grid((), sizes)
            if grid.number(needed) > grid.number(room):
                yield f"{part.program.name} needs {needed} bytes of scratch memory, and has {room}"
                break


def exposed(program: LoopProgram, found: frozenset[str] = frozenset(), facts: Facts = ()) -> Iterator[tuple[str, str]]:
    """Steps, by name and origin, that were not proved to stay in bounds.

    Data-dependent sizes are only checked against their bounds at run time, so everything must follow from those.
    """
    for step in program.steps:
        if found and not _is_proved(step, found, facts):
            yield step.name, ", ".join(step.origins)
        for part in parts_of(step):
            own = {each.symbol: each.bound for each in part.program.sizes if each.bound is not None}
            known = (*facts, *(bound - symbol(name) for name, bound in own.items()))
            yield from exposed(part.program, found.union(own), known)


def _is_proved(step: Step, found: frozenset[str], facts: Facts) -> bool:
    match step:
        case Kernel():
            return all(_is_inside(each, found, facts) for each in accesses_of(step))
        case KernelGroup(_, members):
            return all(_is_proved(each, found, facts) for each in members)
        case LibraryCall():
            views = (*step.inputs, *step.outputs)
            return all(is_proved_inside(each, facts) for each in views if each != whole(each.buffer))
    return True


def _is_inside(access: Access, found: frozenset[str], facts: Facts) -> bool:
    numbers = (*access.what.indices, *access.buffer.shape, *(each.extent for each in access.variables))
    names = {each.name for number in numbers for each in atoms(number) if isinstance(each, Symbol)}
    if names.isdisjoint(found):
        return True
    known = (*facts, *facts_of(access.what.guard))
    pairs = zip(access.what.indices, access.buffer.shape, strict=True)
    return all(is_proved(index, known) and is_proved(size - index - 1, known) for index, size in pairs)


def _arena_of(part: Part) -> Index:
    assert part.plan is not None, f"the memory of {part.program.name} was not planned"
    return part.plan.arena_size
