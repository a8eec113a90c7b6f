"""Steps with infinite or NaN gradients update nothing.

Before: ``graph(weight, count, x) -> (weight_new, count_new, loss, is_finite)``
After:  ``graph(weight, count, x) -> (where(is_finite, weight_new, weight), where(is_finite, …), loss)``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from precast.graph.nodes import results_of, set_value, value_of
from precast.graph.program import Program
from precast.training.placement import Gradients

SKIPPED = "optimizer.skipped"
"""The state that counts skipped steps, and is therefore updated by them."""


def are_finite(loss: torch.Tensor, gradients: Gradients) -> torch.Tensor:
    """Whether the loss and all gradients are finite, so that the step counts."""
    looked_at = [loss, *(gradient for gradient in gradients if gradient is not None)]
    return torch.stack([tensor.isfinite().all() for tensor in looked_at]).all()


def skip_unless_finite(program: Program) -> Program:
    """Keep the state if the last result, which is dropped, is false."""
    assert program.boundary is not None, "a functional program"
    graph, facts = program.copy_graph(), program.boundary
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    *results, is_finite = results_of(graph)
    for position, number in enumerate(facts.updated):
        if program.signature.inputs[number].target != SKIPPED:
            results[position] = _chosen(graph, output, [is_finite, results[position], placeholders[number]])
    output.args = (tuple(results),)
    signature = program.signature.replace(
        outputs=program.signature.outputs[:-1], out_tree=program.signature.out_tree.children()[0]
    )
    kept = replace(facts, outputs=facts.outputs[:-1], values=facts.values[:-1])
    return program.replace(graph=graph, signature=signature, boundary=kept)


def _chosen(graph: fx.Graph, output: fx.Node, operands: Sequence[object]) -> fx.Node:
    nodes = [node for node in operands if isinstance(node, fx.Node)]
    with graph.inserting_before(output):
        chosen = graph.call_function(torch.ops.aten.where.self, tuple(nodes))
    values = [value_of(node) for node in nodes]
    assert isinstance(values[0], FakeTensor), "conditions are tensors"
    with values[0].fake_mode:
        set_value(chosen, torch.ops.aten.where.self(*values))
    return chosen
