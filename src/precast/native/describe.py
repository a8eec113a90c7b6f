"""What an entry takes and returns, as data: the text behind `precast_entry_json` and part of a file's manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precast.artifact.schema import Json
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index
from precast.native.loops.program import FallbackStep, LoopProgram, Plan, SizeSource


@dataclass(frozen=True)
class Storage:
    """Where a tensor of the state is among stored weights: in which one, from which element, with which strides."""

    name: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Condition:
    """What must hold of an entry's sizes: ``left relation right``; `text` says it to people."""

    left: Index
    relation: str
    right: Index
    text: str


@dataclass(frozen=True)
class Entry:
    """A program to call by its name.

    `weights` says which inputs come with the model: input name → name in the model's state. `updates` says which
    outputs become the state's new values: output name → name in the state. `ranges` are the sizes that a dynamic size
    may have, by its symbol; an upper end of None is none. `conditions` are checked at each call.
    """

    program: LoopProgram
    plan: Plan
    weights: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def fallbacks(self) -> tuple[FallbackStep, ...]:
        return self.program.fallbacks


def state_buffers(entries: Sequence[Entry]) -> dict[str, Buffer]:
    """The model's state: name → a buffer of that layout, over all entries, in order."""
    found: dict[str, Buffer] = {}
    for entry in entries:
        for buffer in entry.program.inputs:
            if buffer.name in entry.weights:
                known = found.setdefault(entry.weights[buffer.name], buffer)
                assert known.lies_like(buffer), f"entries disagree on what {entry.weights[buffer.name]} is"
    return found


def describe_entry(entry: Entry) -> Json:
    """Inputs, weights, outputs, updates of the state, and where dynamic sizes are read."""
    program = entry.program
    arguments = [buffer for buffer in program.inputs if buffer.name not in entry.weights]
    weights = [buffer for buffer in program.inputs if buffer.name in entry.weights]
    results = [buffer for buffer in program.outputs if buffer.name not in entry.updates]
    updates = [buffer for buffer in program.outputs if buffer.name in entry.updates]
    positions = {buffer: position for position, buffer in enumerate(arguments)}
    sizes: list[Json] = [
        _describe_size(entry, source, positions[program.inputs[source.position]]) for source in program.sizes
    ]
    return {
        "name": entry.name,
        "inputs": [_describe(buffer, buffer.name) for buffer in arguments],
        "weights": [_describe(buffer, entry.weights[buffer.name]) for buffer in weights],
        "outputs": [_describe(buffer, buffer.name) for buffer in results],
        "updates": [_describe(buffer, entry.updates[buffer.name]) for buffer in updates],
        "sizes": sizes,
    }


def _describe_size(entry: Entry, source: SizeSource, position: int) -> Json:
    lower, upper = entry.ranges.get(source.symbol, (0, None))
    return {
        "name": source.symbol,
        "input": position,
        "dimension": source.dimension,
        "factor": source.factor,
        "offset": source.offset,
        "range": [lower, upper],
    }


def _describe(buffer: Buffer, name: str) -> Json:
    shape: list[Json] = [_size(size) for size in buffer.shape]
    strides: list[Json] = [_size(stride) for stride in buffer.strides]
    return {"name": name, "dtype": buffer.dtype, "shape": shape, "strides": strides}


def _size(size: Index) -> int | str:
    """A number, or an expression of the entry's sizes for people; `precast_infer` computes it."""
    return str(size) if size.constant is None else size.constant
