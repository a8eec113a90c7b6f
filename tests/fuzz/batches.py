"""A backend for many small programs: the native one, but that all are built together, as one library.

Until then their loop programs are interpreted, so that every program is run twice: as loops, and as machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from precast.backend import Backend
from precast.cache import Store
from precast.graph.nodes import is_state, placeholders_of
from precast.native.backend import BACKEND
from precast.native.call import CompiledGraph
from precast.native.compiler import weights_of
from precast.native.describe import Entry as ProgramEntry
from precast.native.fallback import run_step
from precast.native.frozen import FrozenCall, FrozenGraph
from precast.native.graph_passes.freezing import freeze_graph
from precast.native.loops.interpreter import interpret, sizes_of
from precast.native.loops.program import FallbackStep
from precast.native.programs import lower_segments, prepare_graph
from precast.native.steps import steps_of
from precast.native.stored_graphs import written_in_place
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.target import CpuTarget
from precast.options import Options
from precast.runtime import Entry


@dataclass
class SwitchingEntry:
    """A loop program, interpreted until there is machine code of it."""

    entry: ProgramEntry
    weights: dict[str, torch.Tensor]
    native: Entry | None = None

    def run(self, tensors: Sequence[torch.Tensor], *, like_torch: bool) -> Sequence[Any]:
        if self.native is not None:
            return self.native.run(tensors, like_torch=like_torch)
        # Sizes come as arrays of numpy.
        program, given = self.entry.program, map(torch.as_tensor, tensors)
        inputs = [
            self.weights[self.entry.weights[buffer.name]] if buffer.name in self.entry.weights else next(given)
            for buffer in program.inputs
        ]

        def fallback(step: FallbackStep, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return run_step(step, values, sizes_of(program, inputs))

        return interpret(program, inputs, fallback)


@dataclass
class Batch:
    """The programs that were compiled so far and are to be built together."""

    store: Store
    flags: Sequence[str] = ()
    entries: list[SwitchingEntry] = field(default_factory=list)
    graphs: int = 0

    def backend(self, *, freeze: bool) -> Backend:
        inference = self.frozen if freeze else self.compiled
        return Backend(
            "batch",
            self.compiled,
            inference_compiler=inference,
            partition_fn=BACKEND.partition_fn,
            decompositions=BACKEND.decompositions,
        )

    def frozen(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> FrozenGraph:
        names = [node.name if is_state(node) else None for node in placeholders_of(module.graph)]
        return FrozenGraph(names, lambda state: FrozenCall(self.compiled(freeze_graph(module, state), ())))

    def compiled(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        split, prefix = prepare_graph(module, CpuTarget(), Options()), f"graph_{self.graphs}"
        self.graphs += 1
        weights = {f"{prefix}_{name}": value for name, value in weights_of(split).items()}
        made = [
            SwitchingEntry(
                ProgramEntry(each.program, each.plan, {key: f"{prefix}_{name}" for key, name in each.weights.items()}),
                weights,
            )
            for each in lower_segments(split, CpuTarget(), prefix=prefix)
        ]
        self.entries += made
        return CompiledGraph(steps_of(split, made, [written_in_place(each.entry.program) for each in made]))  # type: ignore[arg-type]

    def build(self) -> None:
        """From now on, what was compiled runs as machine code."""
        waiting = [each for each in self.entries if each.native is None]
        if not waiting:
            return
        library = build(generate([each.entry for each in waiting]), store=self.store, extra_flags=self.flags)
        weights = {name: value for each in waiting for name, value in each.weights.items()}
        opened = CpuTarget().open(library, [each.entry.program for each in waiting], weights)
        for each, native in zip(waiting, opened, strict=True):
            each.native = native
