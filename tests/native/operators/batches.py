"""Many graphs through one library: a call of the C++ compiler for each would take hours.

First every case runs with a compiler that notes its graphs and interprets them; then all graphs are built together;
when the case's function is called again, its graphs run natively.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from precast.backend import CompilerFunction
from precast.cache import Store
from precast.errors import BuildError, LoweringError
from precast.native.call import CompiledGraph
from precast.native.compiler import called_back, weights_of
from precast.native.describe import Entry as ProgramEntry
from precast.native.interpreted import interpret
from precast.native.loops.program import FallbackStep
from precast.native.programs import lower_segments, rewrite_graph
from precast.native.split import SplitGraph, split_graph
from precast.native.steps import steps_of
from precast.native.stored_graphs import written_in_place
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.target import CpuTarget
from precast.ops.own_operators import random_seed
from precast.runtime import Entry

FLAGS = ("-O1", "-fno-tree-vectorize")
"""Loops of a few iterations run once: what counts is how long they take to compile."""

KERNELS_A_UNIT = 60
"""Small kernels take less time to compile than the headers take to read."""


class LateGraph:
    """A graph that is interpreted until its library is there."""

    _boxed_call = True

    def __init__(self, split: SplitGraph, entries: list[ProgramEntry], interpreted: Callable[..., Any]) -> None:
        self.split, self.entries = split, entries
        self._call = interpreted

    def __call__(self, inputs: list[Any]) -> Any:
        return self._call(inputs)

    def use(self, compiled: Mapping[str, Entry]) -> None:
        in_place = [written_in_place(entry.program) for entry in self.entries]
        self._call = CompiledGraph(steps_of(self.split, [compiled[entry.name] for entry in self.entries], in_place))


@dataclass
class Recording:
    """The graphs of one case."""

    draws_natively: bool = False
    graphs: list[LateGraph] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def entries(self) -> list[ProgramEntry]:
        return [entry for graph in self.graphs for entry in graph.entries]

    def compiler(self, prefix: str) -> CompilerFunction:
        def record(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            assert not self.is_complete, "the second call is compiled anew"
            split = split_graph(
                rewrite_graph(graph_module, CpuTarget(), random="philox" if self.draws_natively else "eager"), "cpu"
            )
            name = f"{prefix}_{len(self.graphs)}"
            # Constants of graphs that share a library must not share a name.
            entries = [
                replace(entry, weights={buffer: f"{name}_{weight}" for buffer, weight in entry.weights.items()})
                for entry in lower_segments(split, CpuTarget(), prefix=name)
            ]
            self.weights |= {f"{name}_{weight}": value for weight, value in weights_of(split).items()}
            self.graphs.append(LateGraph(split, entries, interpret(graph_module, example_inputs)))
            return self.graphs[-1]

        return record

    def not_native(self) -> set[str]:
        """Operators that called back into torch, or were left to it."""
        steps = [step for entry in self.entries for step in entry.program.steps if isinstance(step, FallbackStep)]
        left = [node for graph in self.graphs for segment in graph.split.segments if not segment.is_native
                for node in segment.nodes if node.target is not random_seed]  # fmt: skip
        return {step.operator for step in steps} | {_name_of(node.target) for node in left}


def _name_of(target: object) -> str:
    """An operator, or what Python computes with sizes, by a name that is the same in every run."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


class Batch:
    """Cases by name: give each its ``recorder``, ``build`` all, and call each function again.

    Random numbers are eager's, to be compared, unless `draws_natively`.
    """

    def __init__(self, *, draws_natively: bool = False) -> None:
        self.draws_natively = draws_natively
        self.recordings: dict[Hashable, Recording] = {}

    def recorder(self, case: Hashable) -> CompilerFunction:
        self.recordings[case] = Recording(self.draws_natively)
        return self.recordings[case].compiler(f"case_{len(self.recordings)}")

    def build(self, folder: Path, cases: Iterable[Hashable]) -> dict[Hashable, str]:
        """Build these cases; gives those that cannot be written, or that the C++ compiler refuses, found by halving."""
        return self._build(list(cases), Store(folder, limit=2**32))

    def _build(self, cases: list[Hashable], store: Store) -> dict[Hashable, str]:
        recordings = [self.recordings[case] for case in cases]
        entries = [entry for recording in recordings for entry in recording.entries]
        try:
            opened = _opened(entries, {k: v for each in recordings for k, v in each.weights.items()}, store)
        except (BuildError, LoweringError, AssertionError) as error:
            half = len(cases) // 2
            if not half:
                return {cases[0]: f"{type(error).__name__}: {error}"}
            return self._build(cases[:half], store) | self._build(cases[half:], store)
        for recording in recordings:
            recording.is_complete = True
            for graph in recording.graphs:
                graph.use(opened)
        return {}


def _opened(entries: list[ProgramEntry], weights: dict[str, torch.Tensor], store: Store) -> dict[str, Entry]:
    if not entries:
        return {}
    with store.held():
        with patch("precast.native.targets.cpu.codegen.generate.KERNELS_A_UNIT", KERNELS_A_UNIT):
            sources = generate(entries)
        library = build(sources, store=store, extra_flags=FLAGS)
        opened = CpuTarget().open(library, [called_back(entry.program) for entry in entries], weights)
    return {entry.name: entry for entry in opened}
