"""Decompose a log-softmax of which a loss reads one element per row: the row's normalizer is saved, not the row.

Before::

        logs = _log_softmax(x, 1)                             as large as x: saved, or recomputed
    loss = gather(logs, 1, label)

After::

    largest = amax(x, 1);  total = log(sum(exp(x - largest), 1))         one number per row each, which are saved
    loss    = gather(x - largest - total, 1, label)                      computed where it is read
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.node import Argument
from torch.utils.checkpoint import CheckpointPolicy

from precast.graph.nodes import (
    copy_provenance,
    has_value,
    results_of,
    set_checkpoint_tag,
    set_value,
    value_of,
)

_aten = torch.ops.aten


def show_normalizers(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which such softmaxes are decomposed; the graph itself if there are none."""
    results = set(results_of(module.graph))
    names = {node.name for node in module.graph.nodes if node not in results and _is_read_at_labels(node)}
    if not names:
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if node.name in names:
            _decompose(graph, node)
    return fx.GraphModule(module, graph)


def _is_read_at_labels(node: fx.Node) -> bool:
    if node.target is not _aten._log_softmax.default or not has_value(node) or "recompute" in node.meta:
        return False
    value, dim = value_of(node), node.args[1]
    if not isinstance(value, FakeTensor) or not value.ndim or not isinstance(dim, int):
        return False
    # An empty row has no largest element.
    length = value.shape[dim]
    return isinstance(length, int) and length > 0 and any(user.target is _aten.gather.default for user in node.users)


def _decompose(graph: fx.Graph, node: fx.Node) -> None:
    source, dim, _ = node.args
    result = value_of(node)
    assert isinstance(source, fx.Node)
    assert isinstance(result, FakeTensor)

    def call(target: OpOverload, *arguments: Argument, **choices: Argument) -> fx.Node:
        made = graph.call_function(target, arguments, choices)
        values = (value_of(each) if isinstance(each, fx.Node) else each for each in arguments)
        set_value(made, target(*values, **choices))
        copy_provenance(node, made)
        return made

    def in_type(value: fx.Node, dtype: torch.dtype) -> fx.Node:
        given = value_of(value)
        assert isinstance(given, FakeTensor)
        return value if given.dtype is dtype else call(_aten._to_copy.default, value, dtype=dtype)

    with graph.inserting_before(node):
        # 16-bit floats are computed in single precision, and rounded once.
        is_wide = result.dtype is torch.float64
        wide = in_type(source, torch.float64 if is_wide else torch.float32)
        largest = call(_aten.amax.default, wide, [dim], True)
        powers = call(_aten.exp.default, call(_aten.sub.Tensor, wide, largest))
        total = call(_aten.log.default, call(_aten.sum.dim_IntList, powers, [dim], True))
        for each in (largest, total):
            # Recomputing them would read the whole row.
            set_checkpoint_tag(each, 0, CheckpointPolicy.MUST_SAVE)
        # Subtract again instead of reusing the difference: with one reader, it fuses there and is never stored.
        logs = in_type(call(_aten.sub.Tensor, call(_aten.sub.Tensor, wide, largest), total), result.dtype)
    # The decomposed steps would be laid out like their operands.
    set_value(logs, result)
    node.replace_all_uses_with(logs)
    graph.erase_node(node)
