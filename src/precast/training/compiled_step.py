"""A step's program, compiled by a backend, which updates the state in place.

Before: ``graph(state, batch) -> (updates, results)``
After:  ``call([*state, *batch]) -> results``, and the state is updated without copies
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.autograd.boundary.mutations import Update, apply_updates, mark_updates
from precast.autograd.compile_cache import start_graph
from precast.autograd.compilers_in_use import CompilersInUse, named_call
from precast.export.program import ExportedProgram
from precast.graph.compilation import new_compilation
from precast.graph.nodes import devices_of, placeholders_of
from precast.graph.signature import InputKind
from precast.native.programs import lower_segments, prepare_graph
from precast.native.random import SEED_NAME, draw_from_streams, seed_as_input
from precast.native.targets import target_for
from precast.options import Options
from precast.packaging.traced_program import retraced
from precast.trace.state.stored import Stored
from precast.training.schedule import schedule_collectives
from precast.training.separate_memory import SeparateMemory

KIND = "train_step"


class CompiledStep:
    """A compiled program, called with the state in the order of ``state_names``, and with a batch.

    It returns a pair with the traced values that are ``stored`` in Python's state.
    """

    def __init__(self, exported: ExportedProgram, stored: Stored, compilers: CompilersInUse) -> None:
        program, facts = exported.program, exported.program.boundary
        assert facts is not None, "captured steps are functional"
        self.exported, self._stored = exported, stored
        self.state_names = [
            str(spec.target) for spec in program.signature.inputs if spec.kind is not InputKind.USER_INPUT
        ]
        module = retraced(program, compilers.decompositions)
        if compilers.inference.random_source() == "philox":
            module = _seeded(module)
        module = schedule_collectives(module)
        self.draws = any(node.name == SEED_NAME for node in placeholders_of(module.graph))
        mark_updates(module.graph, facts)
        self.module = module
        with new_compilation() as compilation:
            name = compilation.graph_name(KIND)
            compiled = start_graph(compilers.inference, module, name)()
        call = named_call(compiled, name)
        self._memory = SeparateMemory(self.state_names, facts.updated)
        updates = [Update(number, facts.inputs[number]) for number in facts.updated]
        self._call = apply_updates(lambda values: list(call(list(values))), updates)
        self._convention = exported.call_convention
        self._out_tree = program.signature.out_tree

    def leaves_of(self, batch: Any) -> list[Any]:
        """The leaves of a batch; an error names what does not fit."""
        return pytree.tree_leaves(self._convention.normalized((batch,), {}))

    def arena_bytes(self, options: Options) -> int:
        """The size of the arena for all temporaries of a step, in native code."""
        target = target_for(devices_of(self.module.graph))
        entries = lower_segments(prepare_graph(self.module, target, options), target)
        return sum(int(entry.plan.arena_size.constant or 0) for entry in entries)

    def run(self, state: Sequence[torch.Tensor], leaves: Sequence[Any], seed: torch.Tensor) -> Any:
        """Run one step; one that draws random numbers takes them from the seed, and increments it.

        What the program leaves in Python's state is left there, too.
        """
        self._memory.check(state, leaves)
        values = [*state, *leaves, *([seed] if self.draws else [])]
        with torch.no_grad():
            results = self._call(values)
            if self.draws:
                seed.add_(1)
        result, stored = pytree.tree_unflatten(results, self._out_tree)
        self._stored.put(stored)
        return result


def _seeded(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with its random seed as its last input."""
    return seed_as_input(draw_from_streams(module, target_for(devices_of(module.graph)).device))
