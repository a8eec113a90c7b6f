"""Many graphs through one library: a call of the C++ compiler for each would take hours.

First every case runs with a compiler that interprets its graphs and notes them; then all graphs are built together;
then every case runs again, and its graphs, which come in the same order, run natively.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from precast.build.library import build
from precast.cache import Store
from precast.codegen.describe import Entry as ProgramEntry
from precast.codegen.generate import generate
from precast.compilers.interpreted import interpret
from precast.compilers.native import called_back, lower_segments, open_entries, weights_of
from precast.compilers.native_call import CompiledGraph
from precast.compilers.native_random import draw_from_streams
from precast.compilers.native_split import SplitGraph, split_graph
from precast.errors import BuildError
from precast.ir.loops.program import FallbackStep
from precast.ops.random import random_seed

FLAGS = ("-O1", "-fno-tree-vectorize")
"""Loops of a few iterations run once: what counts is how long they take to compile."""

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass
class Recording:
    """The graphs of one case, in the order in which they were compiled."""

    draws_natively: bool = False
    is_built: bool = True
    graphs: list[SplitGraph] = field(default_factory=list)
    entries: list[list[ProgramEntry]] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def compiler(self, prefix: str) -> Compiler:
        def record(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            split = split_graph(draw_from_streams(graph_module) if self.draws_natively else graph_module)
            name = f"{prefix}_{len(self.graphs)}"
            # Constants of graphs that share a library must not share a name.
            entries = [
                replace(entry, weights={buffer: f"{name}_{weight}" for buffer, weight in entry.weights.items()})
                for entry in lower_segments(split, prefix=name)
            ]
            self.weights |= {f"{name}_{weight}": value for weight, value in weights_of(split).items()}
            if self.is_built:
                generate(entries)  # what cannot be written is told of this case, not of all
            self.entries.append(entries)
            self.graphs.append(split)
            return interpret(graph_module, example_inputs)

        return record

    def not_native(self) -> set[str]:
        """Operators that called back into torch, or were left to it."""
        programs = [entry.program for entries in self.entries for entry in entries]
        steps = [step for program in programs for step in program.steps if isinstance(step, FallbackStep)]
        left = [node for graph in self.graphs for segment in graph.segments if not segment.is_native
                for node in segment.nodes if node.target is not random_seed]  # fmt: skip
        return {step.operator for step in steps} | {str(node.target) for node in left}


class Batch:
    """Cases by name; ``add`` all, ``build``, then take each one's compiler.

    Random numbers are eager's, to be compared, unless `draws_natively`. With `is_built` false, graphs are lowered only.
    """

    def __init__(self, *, draws_natively: bool = False, is_built: bool = True) -> None:
        self.draws_natively, self.is_built = draws_natively, is_built
        self.recordings: dict[Hashable, Recording] = {}
        self._compiled: dict[str, Any] = {}

    def recorder(self, case: Hashable) -> Compiler:
        self.recordings[case] = Recording(self.draws_natively, self.is_built)
        return self.recordings[case].compiler(f"case_{len(self.recordings)}")

    def build(self, folder: Path) -> dict[Hashable, BuildError]:
        """Build all cases; gives those that the C++ compiler refuses, found by halving."""
        return self._build(list(self.recordings), Store(folder, limit=2**32))

    def _build(self, cases: list[Hashable], store: Store) -> dict[Hashable, BuildError]:
        entries = [entry for case in cases for each in self.recordings[case].entries for entry in each]
        if not entries:
            return {}
        try:
            with store.held():
                library = build(generate(entries), store=store, extra_flags=FLAGS)
                weights = {name: value for case in cases for name, value in self.recordings[case].weights.items()}
                opened = open_entries(library, [called_back(entry.program) for entry in entries], weights)
        except BuildError as error:
            half = len(cases) // 2
            return (
                {cases[0]: error} if not half else self._build(cases[:half], store) | self._build(cases[half:], store)
            )
        self._compiled |= {entry.name: entry for entry in opened}
        return {}

    def compiler(self, case: Hashable) -> Compiler:
        """Gives the case's graphs as built, one after the other."""
        recording = self.recordings[case]
        remaining = iter(zip(recording.graphs, recording.entries, strict=True))

        def take(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            recorded, entries = next(remaining)
            ours = split_graph(graph_module)
            shapes = [[len(segment.nodes) for segment in split.segments] for split in (recorded, ours)]
            assert shapes[0] == shapes[1], "the second run gave other graphs than the first"
            return CompiledGraph(ours, [self._compiled[entry.name] for entry in entries])

        return take
