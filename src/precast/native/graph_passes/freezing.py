"""Inference with constant parameters: known when the first call comes, so that is when the graph is compiled.

Before: ``graph(weight, bias, x)``, where ``weight`` and ``bias`` are marked as state
After:  ``graph(x)``, with ``weight`` and ``bias``, or what was computed from them, as attributes of its module

The state of a model may not change afterwards: whether a change shows in results is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from precast.errors import FreezeError
from precast.graph.nodes import is_state, placeholders_of
from precast.native.graph_passes.constant_folding import add_constant, fold_batch_norms, fold_constants
from precast.trace.session import ProcessLock

BoxedFunction = Callable[[list[Any]], Sequence[Any]]


def freeze_graph(module: fx.GraphModule, values: Mapping[str, torch.Tensor]) -> fx.GraphModule:
    """A copy of ``module`` in which placeholders are constants, given by name, and all that follows is computed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    frozen = fx.GraphModule(module, graph)
    for node in placeholders_of(frozen.graph):
        if node.name in values:
            value = values[node.name].detach()
            constant = add_constant(frozen, node, value, like=node, name="constant", sources=frozenset({node.name}))
            node.replace_all_uses_with(constant)
            frozen.graph.erase_node(node)
    fold_constants(frozen)
    fold_batch_norms(frozen)
    frozen.recompile()
    return frozen


class FrozenGraph:
    """Takes the inputs of ``module``, which it compiles when it is called first."""

    _boxed_call = True

    def __init__(self, module: fx.GraphModule, compile_graph: Callable[[fx.GraphModule], BoxedFunction]):
        self._module: fx.GraphModule | None = module
        self._compile_graph = compile_graph
        self._lock = ProcessLock()
        self._compiled: BoxedFunction | None = None
        names = [node.name if is_state(node) else None for node in placeholders_of(module.graph)]
        self._state = {place: name for place, name in enumerate(names) if name is not None}
        self._passed = [place for place, name in enumerate(names) if name is None]

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        compiled = self._compiled or self._compile(inputs)
        passed = [inputs[place] for place in self._passed]
        inputs.clear()
        return compiled(passed)

    def _compile(self, inputs: Sequence[Any]) -> BoxedFunction:
        with self._lock:
            if self._compiled is None:
                assert self._module is not None, "the graph is kept until it is compiled"
                values = {name: inputs[place] for place, name in self._state.items()}
                self._compiled = self._compile_graph(freeze_graph(self._module, values))
                self._module = None
            return self._compiled


def refuse_gradients() -> None:
    """Tell that what is constant has no gradients."""
    raise FreezeError(
        "the compiled function was called for gradients, and its parameters are frozen",
        why="options(freeze=True) makes parameters and buffers constants when they are first used",
        fix="call it under torch.no_grad() or torch.inference_mode(), or compile without freeze",
    )
