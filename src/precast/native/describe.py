"""Describes an entry's inputs and outputs as data: for `precast_entry_json` and a file's manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precast.artifact.schema import Json
from precast.native.loops.buffers import Buffer, as_complex
from precast.native.loops.index import Index
from precast.native.loops.program import FallbackStep, LoopProgram, Plan, SizeSource


@dataclass(frozen=True)
class Storage:
    """Where a tensor of the state is in the stored weights: in which storage, at which offset, with which strides."""

    name: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Condition:
    """A condition on an entry's sizes: ``left relation right``; `text` is for error messages."""

    left: Index
    relation: str
    right: Index
    text: str


@dataclass(frozen=True)
class Entry:
    """A program that is called by its name.

    `weights` says which inputs are weights: input name → name in the model's state. `updates` says which
    outputs become the state's new values: output name → name in the state. `ranges` are the bounds of each dynamic
    size, by its symbol; an upper bound of None is none. `conditions` are checked at each call.
    `pairs` are inputs and outputs that are complex tensors to callers.
    `input_names`, `output_names` and `size_names` are the user's names of inputs, outputs and symbols, if any.
    """

    program: LoopProgram
    plan: Plan
    weights: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    pairs: frozenset[str] = frozenset()
    input_names: Mapping[str, str] = field(default_factory=dict)
    output_names: Mapping[str, str] = field(default_factory=dict)
    size_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.program.name

    def outside(self, buffer: Buffer) -> Buffer:
        """An input or output as callers see it: pairs of real numbers as a complex tensor."""
        return as_complex(buffer) if buffer.name in self.pairs else buffer

    @property
    def updated_state(self) -> set[str]:
        """The names of state that calls change: through an output, or in place."""
        written = {self.weights[each.name] for each in self.program.written_inputs if each.name in self.weights}
        return {*self.updates.values(), *written}

    @property
    def fallbacks(self) -> tuple[FallbackStep, ...]:
        return self.program.fallbacks


def state_buffers(entries: Sequence[Entry]) -> dict[str, Buffer]:
    """The model's state: name → a buffer of its layout, over all entries, in order."""
    found: dict[str, Buffer] = {}
    for entry in entries:
        # State that is written and never read is included.
        names = {buffer: entry.weights.get(buffer.name) for buffer in entry.program.inputs}
        names |= {buffer: entry.updates.get(buffer.name) for buffer in entry.program.outputs}
        for buffer, name in names.items():
            if name is not None:
                seen = entry.outside(buffer)
                assert found.setdefault(name, seen).is_laid_out_like(seen), f"entries disagree on what {name} is"
    return found


def describe_entry(entry: Entry) -> Json:
    """Describe inputs, weights, outputs, updates of the state, and where dynamic sizes are read."""
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
        "inputs": [_describe(entry, buffer, input_name(entry, buffer)) for buffer in arguments],
        "weights": [_describe(entry, buffer, input_name(entry, buffer)) for buffer in weights],
        "outputs": [_describe(entry, buffer, output_name(entry, buffer)) for buffer in results],
        "updates": [
            *(_describe(entry, buffer, output_name(entry, buffer)) for buffer in updates),
            *(
                _describe(entry, buffer, input_name(entry, buffer))
                for buffer in weights
                if buffer in program.written_inputs
            ),
        ],
        "sizes": sizes,
    }


def input_name(entry: Entry, buffer: Buffer) -> str:
    """The name of an input for callers: its name in the state, the user's name for it, or the buffer's own."""
    return entry.weights.get(buffer.name) or entry.input_names.get(buffer.name, buffer.name)


def output_name(entry: Entry, buffer: Buffer) -> str:
    """The same for an output."""
    return entry.updates.get(buffer.name) or entry.output_names.get(buffer.name, buffer.name)


def _describe_size(entry: Entry, source: SizeSource, position: int) -> Json:
    lower, upper = entry.ranges.get(source.symbol, (0, None))
    return {
        "name": entry.size_names.get(source.symbol, source.symbol),
        "input": position,
        "dimension": source.dimension,
        "factor": source.factor,
        "offset": source.offset,
        "range": [lower, upper],
    }


def _describe(entry: Entry, buffer: Buffer, name: str) -> Json:
    buffer = entry.outside(buffer)
    shape: list[Json] = [_size(entry, size) for size in buffer.shape]
    strides: list[Json] = [_size(entry, stride) for stride in buffer.strides]
    return {"name": name, "dtype": buffer.dtype, "shape": shape, "strides": strides}


def _size(entry: Entry, size: Index) -> int | str:
    """A number, or an expression of the entry's sizes, for display; `precast_infer` evaluates it."""
    if size.constant is not None:
        return size.constant
    return re.sub(r"[^\W\d]\w*", lambda name: entry.size_names.get(name[0], name[0]), str(size))
