"""Programs that steps run: they take and fill what the steps hand them, and have room for what they need meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Symbol, atoms, constant
from precast.native.loops.program import LoopProgram, Part, Repeat, Run, Step, parts_of
from precast.native.loops.size_bounds import Bounds, upper_bound, with_own_bounds
from precast.native.loops.verifier.enumeration import Grid, sample_sizes


def mismatched(step: Run | Repeat) -> Iterator[str]:
    """Inputs and outputs of parts that are laid out otherwise than what they are given, and choices that are none."""
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
        yield "the body runs so many times, or while a condition holds"
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
        if not own.lies_like(other):
            yield f"{what}: {own.name} is laid out otherwise than {other.name}"


def cramped(step: Step, bounds: Bounds) -> Iterator[str]:
    """Parts whose temporaries do not fit into the scratch memory of their step."""
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


def _arena_of(part: Part) -> Index:
    assert part.plan is not None, f"the memory of {part.program.name} was not planned"
    return part.plan.arena_size
