"""Keep a batch norm's mean and spread for the backward, so that only its formula is computed again.

Before::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
    y    = norm[0]                                   the backward sums over x again to have it

After, with the mean and the spread saved::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
    y    = (x - norm[1]) * norm[2] * weight + bias
"""

from __future__ import annotations

from operator import getitem

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument
from torch.utils.checkpoint import CheckpointPolicy

from precast.ir.node_meta import copy_provenance, set_checkpoint_tag, set_value, tensor_of, value_of

_aten = torch.ops.aten
_NORM = _aten._native_batch_norm_legit_functional.default
# In narrower types the operator keeps more precision between its steps than several operators would.
_DTYPES = (torch.float32, torch.float64)


def keep_statistics(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which all norms that train are taken apart; the graph itself if there are none."""
    if not any(map(_is_trained, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if _is_trained(node):
            _take_apart(graph, node)
    return fx.GraphModule(module, graph)


def _is_trained(node: fx.Node) -> bool:
    if node.target is not _NORM or node.args[5] is not True or "recompute" in node.meta:
        return False
    return _result(node, 0) is not None and tensor_of(node.all_input_nodes[0]).dtype in _DTYPES


def _result(norm: fx.Node, place: int) -> fx.Node | None:
    return next((user for user in norm.users if user.target is getitem and user.args[1] == place), None)


def _take_apart(graph: fx.Graph, norm: fx.Node) -> None:
    source, weight, bias = norm.args[:3]
    output = _result(norm, 0)
    assert isinstance(source, fx.Node)
    assert output is not None
    # Whoever recomputes the norm reads all of its input for two numbers a channel.
    set_checkpoint_tag(norm, 0, CheckpointPolicy.MUST_SAVE)

    def call(target: OpOverload, *arguments: Argument) -> fx.Node:
        made = graph.call_function(target, arguments)
        values = (value_of(each) if isinstance(each, fx.Node) else each for each in arguments)
        set_value(made, target(*values))
        copy_provenance(norm, made)
        return made

    def along_channels(value: Argument) -> fx.Node:
        return call(_aten.view.default, value, [1, -1, *[1] * (tensor_of(source).ndim - 2)])

    mean, spread = (_result_at_once(graph, norm, place) for place in (1, 2))
    with graph.inserting_before(output):
        scale = spread if weight is None else call(_aten.mul.Tensor, spread, weight)
        value = call(_aten.mul.Tensor, call(_aten.sub.Tensor, source, along_channels(mean)), along_channels(scale))
        value = value if bias is None else call(_aten.add.Tensor, value, along_channels(bias))
    # The steps would lie as their operands do, the norm need not.
    set_value(value, value_of(output))
    output.replace_all_uses_with(value)
    graph.erase_node(output)


def _result_at_once(graph: fx.Graph, norm: fx.Node, place: int) -> fx.Node:
    """One of the norm's results, directly behind it; those that were taken later give way to it."""
    with graph.inserting_after(norm):
        made = graph.call_function(getitem, (norm, place))
    values = value_of(norm)
    assert isinstance(values, tuple | list)
    set_value(made, values[place])
    copy_provenance(norm, made)
    for other in [user for user in norm.users if user is not made and user.args[1] == place]:
        other.replace_all_uses_with(made)
        graph.erase_node(other)
    return made
