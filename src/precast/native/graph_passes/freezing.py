"""Freezing: inference with constant parameters.

Before: ``graph(weight, bias, x)``, where ``weight`` and ``bias`` are marked as state
After:  ``graph(x)``, with ``weight`` and ``bias``, or what was computed from them, as attributes of its module

The model's state must not change afterwards: results may or may not reflect a change.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from precast.errors import FreezeError
from precast.graph.nodes import placeholders_of
from precast.native.graph_passes.constant_folding import add_constant, fold_batch_norms, fold_constants


def freeze_graph(module: fx.GraphModule, values: Mapping[str, torch.Tensor]) -> fx.GraphModule:
    """A copy of ``module`` in which the named placeholders are constants, folded as far as possible."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    frozen = fx.GraphModule(module, graph)
    for node in placeholders_of(frozen.graph):
        if node.name in values:
            # What torch conjugates or negates lazily is computed now: graphs may look at the memory itself.
            value = values[node.name].detach().resolve_conj().resolve_neg()
            constant = add_constant(frozen, node, value, like=node, name="constant", sources=frozenset({node.name}))
            node.replace_all_uses_with(constant)
            frozen.graph.erase_node(node)
    fold_constants(frozen)
    fold_batch_norms(frozen)
    frozen.recompile()
    return frozen


def refuse_gradients() -> None:
    """Raise the error for gradients of frozen parameters."""
    raise FreezeError(
        "the compiled function was called for gradients, and its parameters are frozen",
        why="options(freeze=True) makes parameters and buffers constants when they are first used",
        fix="call it under torch.no_grad() or torch.inference_mode(), or compile without freeze",
    )
