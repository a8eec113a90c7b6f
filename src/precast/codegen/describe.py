"""What an entry takes and gives, as plain data: the text behind `precast_entry_json` and part of a file's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index
from precast.ir.loops.program import FallbackStep, LoopProgram, Plan

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True)
class Entry:
    """A program to call by its name. `weights` says which inputs come with the model: input name → weight name."""

    program: LoopProgram
    plan: Plan
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def fallbacks(self) -> tuple[FallbackStep, ...]:
        return tuple(step for step in self.program.steps if isinstance(step, FallbackStep))


def describe_entry(entry: Entry) -> Json:
    """Inputs (without weights), weights, outputs and where dynamic sizes are read."""
    program = entry.program
    arguments = [buffer for buffer in program.inputs if buffer.name not in entry.weights]
    weights = [buffer for buffer in program.inputs if buffer.name in entry.weights]
    positions = {buffer: position for position, buffer in enumerate(arguments)}
    sizes: list[Json] = [
        {"name": source.symbol, "input": positions[program.inputs[source.position]], "dimension": source.dimension}
        for source in program.sizes
        if program.inputs[source.position] in positions
    ]
    return {
        "name": entry.name,
        "inputs": [_describe(buffer, buffer.name) for buffer in arguments],
        "weights": [_describe(buffer, entry.weights[buffer.name]) for buffer in weights],
        "outputs": [_describe(buffer, buffer.name) for buffer in program.outputs],
        "sizes": sizes,
    }


def _describe(buffer: Buffer, name: str) -> Json:
    shape: list[Json] = [_size(size) for size in buffer.shape]
    strides: list[Json] = [_size(stride) for stride in buffer.strides]
    return {"name": name, "dtype": buffer.dtype, "shape": shape, "strides": strides}


def _size(size: Index) -> int | str:
    """A number, or an expression of the entry's sizes for people; `precast_infer` computes it."""
    return str(size) if size.constant is None else size.constant
