"""Activation recomputation: a step saves less of its forward for its backward, and recomputes the rest.

Before: ``graph(state, batch, tangent) -> (updates, loss)``: the backward reads what the forward computed
After:  the same without ``tangent``, which is one; values that exceed a memory budget are computed twice

The step is partitioned at the tangent, like any joint graph, and rejoined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import CheckpointPolicy

from precast.export.tidy import tidied
from precast.graph.nodes import placeholders_of, results_of, set_checkpoint_tag, set_value, value_of
from precast.graph.program import Program
from precast.ops.facts import is_random
from precast.partition import min_cut_rematerialization_partition
from precast.partition.trade_off import estimated_peak_bytes

TANGENT = "optimizer.tangent"
"""The gradient of the loss, while a step to be partitioned is captured."""

_FRACTIONS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.0)


def within_budget(program: Program, memory_budget: float) -> Program:
    """The same step within a budget, a fraction or a number of bytes; a smaller one never needs more memory."""
    specs, placeholders = program.signature.inputs, program.placeholders
    number = next(i for i, spec in enumerate(specs) if spec.target == TANGENT)
    late = _depending_on(placeholders[number])
    results = program.results
    forward_first = sorted(range(len(results)), key=lambda i: results[i] in late)
    count = sum(result not in late for result in results)
    joint = _reordered(program, number, forward_first)
    order = {place: position for position, place in enumerate(forward_first)}
    places = [order[i] for i in range(len(results))]
    made = [_cut(joint, count, places, each) for each in _budgets(memory_budget)]
    module = min(made, key=_peak_bytes)
    assert program.boundary is not None, "captured steps are functional"
    inputs = [fact for i, fact in enumerate(program.boundary.inputs) if i != number]
    changed = program.replace(
        module=module,
        signature=program.signature.replace(inputs=tuple(spec for i, spec in enumerate(specs) if i != number)),
        state={name: tensor for name, tensor in program.state.items() if name != TANGENT},
        boundary=replace(program.boundary, inputs=tuple(inputs)),
    )
    return tidied(changed)


def _budgets(asked: float) -> list[float]:
    """Budgets to try: saving less may mean recomputing more at once, so that a larger budget can need less memory."""
    if asked > 1:
        return [1.0, asked]
    return [each for each in _FRACTIONS if each >= asked] or [0.0]


def _cut(joint: fx.GraphModule, count: int, places: Sequence[int], memory_budget: float) -> fx.GraphModule:
    """The step partitioned within a budget, and rejoined."""
    examples = [value_of(node) for node in placeholders_of(joint.graph)]
    forward, backward = min_cut_rematerialization_partition(
        joint, (examples[:-1], examples[-1:]), num_fwd_outputs=count, memory_budget=memory_budget
    )
    children = {**dict(forward.named_children()), **dict(backward.named_children())}
    return fx.GraphModule(children, _joined(forward, backward, count, places))


def _peak_bytes(module: fx.GraphModule) -> int:
    """The peak of live memory, excluding the state and updates that are written in place."""
    outside = [*placeholders_of(module.graph), *results_of(module.graph)]
    return estimated_peak_bytes(module, held={node.name for node in outside if isinstance(node, fx.Node)})


def _depending_on(source: fx.Node) -> set[object]:
    found: set[object] = {source}
    for node in source.graph.nodes:
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _reordered(program: Program, tangent: int, order: Sequence[int]) -> fx.GraphModule:
    """The graph as partitioning expects it: the tangent last, and results that do not depend on it first."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    names = program.placeholders
    for position, node in enumerate([*(each for each in names if each is not names[tangent]), names[tangent]]):
        is_last = position == len(names) - 1
        copies[node] = graph.placeholder("tangents_1" if is_last else node.name)
        copies[node].meta = dict(node.meta)
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if is_random(node):
                # A file cannot express that a draw is repeated.
                set_checkpoint_tag(copies[node], 0, CheckpointPolicy.MUST_SAVE)
    results = program.results
    graph.output(tuple(_copy(results[i], copies) for i in order))
    return fx.GraphModule(program.module, graph)


def _copy(result: Any, copies: Mapping[fx.Node, fx.Node]) -> Any:
    return copies[result] if isinstance(result, fx.Node) else result


def _joined(forward: fx.GraphModule, backward: fx.GraphModule, count: int, order: Sequence[int]) -> fx.Graph:
    """Both graphs as one; ``order`` maps results to those of the forward and then the backward."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in forward.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    returned = [_copy(result, copies) for result in results_of(forward.graph)]
    *saved, tangent = placeholders_of(backward.graph)
    # A backward takes sizes first, but a forward returns them last.
    sizes = sum(isinstance(value_of(node), torch.SymInt) for node in saved)
    handed = returned[count:]
    within: dict[fx.Node, fx.Node] = {}
    for node, value in zip(saved, [*handed[len(handed) - sizes :], *handed[: len(handed) - sizes]], strict=True):
        assert isinstance(value, fx.Node), "what is saved was computed"
        within[node] = value
    within[tangent] = _one(graph, value_of(tangent))
    for node in backward.graph.nodes:
        if node.op not in ("placeholder", "output"):
            within[node] = graph.node_copy(node, within.__getitem__)
    late = [_copy(result, within) for result in results_of(backward.graph)]
    both = [*returned[:count], *late]
    output = graph.output(tuple(both[place] for place in order))
    output.meta = {}
    return graph


def _one(graph: fx.Graph, like: object) -> fx.Node:
    assert isinstance(like, FakeTensor), "losses are tensors"
    node = graph.call_function(
        torch.ops.aten.full.default, (list(like.shape), 1), {"dtype": like.dtype, "device": like.device}
    )
    set_value(node, like)
    return node
