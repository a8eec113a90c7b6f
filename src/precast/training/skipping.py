"""Steps with infinite or NaN gradients update nothing.

Before: ``graph(weight, count, x) -> (weight_new, count_new, loss, is_finite, stored)``
After:  ``graph(weight, count, x) -> (where(is_finite, weight_new, weight), where(is_finite, …), loss, stored)``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from precast.graph.nodes import results_of, set_value, value_of
from precast.graph.program import Program
from precast.training.placement import Gradients

SKIPPED = "optimizer.skipped"
"""The state that counts skipped steps, and is therefore updated by them."""


def are_finite(loss: torch.Tensor, gradients: Gradients) -> torch.Tensor:
    """Whether the loss and all gradients are finite, so that the step counts."""
    looked_at = [loss, *(gradient for gradient in gradients if gradient is not None)]
    return torch.stack([tensor.isfinite().all() for tensor in looked_at]).all()


def skip_unless_finite(program: Program, *, is_pair: bool) -> Program:
    """Keep the state if the last result, which is dropped, is false.

    If the program returns a pair, of which the second part is stored, it is the last one of the first part.
    """
    assert program.boundary is not None, "a functional program"
    graph, facts = program.copy_graph(), program.boundary
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    tree = program.signature.out_tree
    own, *rest = tree.children() if is_pair else (tree,)
    # Counted from the end, where no updates are.
    place = len(results_of(graph)) - 1 - sum(each.num_leaves for each in rest)
    results = list(results_of(graph))
    is_finite = results.pop(place)
    for position, number in enumerate(facts.updated):
        if program.signature.inputs[number].target != SKIPPED:
            results[position] = _chosen(graph, output, [is_finite, results[position], placeholders[number]])
    output.args = (tuple(results),)
    trees = [own.children()[0], *rest]
    signature = program.signature.replace(
        outputs=_without(program.signature.outputs, place), out_tree=_pair_tree(*trees) if rest else trees[0]
    )
    first = place - len(facts.updated)
    kept = replace(facts, outputs=_without(facts.outputs, first), values=_without(facts.values, place))
    return program.replace(graph=graph, signature=signature, boundary=kept)


def _without(items: Sequence[Any], place: int) -> tuple[Any, ...]:
    return *items[:place], *items[place + 1 :]


def _pair_tree(*trees: pytree.TreeSpec) -> pytree.TreeSpec:
    """The tree of a tuple of values that have these trees."""
    return pytree.tree_structure(tuple(pytree.tree_unflatten([0] * tree.num_leaves, tree) for tree in trees))


def _chosen(graph: fx.Graph, output: fx.Node, operands: Sequence[object]) -> fx.Node:
    nodes = [node for node in operands if isinstance(node, fx.Node)]
    with graph.inserting_before(output):
        chosen = graph.call_function(torch.ops.aten.where.self, tuple(nodes))
    values = [value_of(node) for node in nodes]
    assert isinstance(values[0], FakeTensor), "conditions are tensors"
    with values[0].fake_mode:
        set_value(chosen, torch.ops.aten.where.self(*values))
    return chosen
