"""The split that native code likes: images that the backward is given, and those inside it, are laid out channels last.

Before: ``conv`` is saved as ``f32[8, 64, 56, 56]`` with strides (200704, 3136, 56, 1), as eager lays it out
After:  the same with strides (200704, 1, 3584, 64), for the forward's result and the backward's input

Nobody but the two graphs sees what is saved, and convolutions on either side want it so.

Keep a batch norm's mean and spread for the backward, so that only its formula is computed again.

Before::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
    y    = norm[0]                                   the backward sums over x again to have it

After, with the mean and the spread saved::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
    y    = (x - norm[1]) * norm[2] * weight + bias

Show every size of an input as a number, so that a backward whose own inputs hide it can be handed it.

Before: ``primals_1: f32[s0, s1]``, and the backward is given ``f32[Min(s0, s1)]`` alone
After:  ``sym_size = sym_size(primals_1, 0)`` and another one for ``s1``, saved where they are needed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.node import Argument
from torch.utils.checkpoint import CheckpointPolicy

from precast.events import apply_pass, stage
from precast.graph.nodes import (
    copy_provenance,
    devices_of,
    has_value,
    placeholders_of,
    results_of,
    set_checkpoint_tag,
    set_value,
    tensor_of,
    value_of,
)
from precast.native.targets import target_for
from precast.ops.facts import Fact, facts_of

_aten = torch.ops.aten
_NORM = _aten._native_batch_norm_legit_functional.default
# In narrower types the operator keeps more precision between its steps than several operators would.
_DTYPES = (torch.float32, torch.float64)


def keep_statistics(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which all norms that train are decomposed; the graph itself if there are none."""
    if not any(map(_is_trained, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if _is_trained(node):
            _take_apart(graph, node)
    return fx.GraphModule(module, graph)


def show_sizes(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which each size of a primal is a node; the graph itself if it is so already."""
    shown = {str(node.meta["val"]) for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)}
    hidden: dict[str, tuple[str, int]] = {}
    for node in placeholders_of(module.graph):
        value = value_of(node) if has_value(node) else None
        sizes: Sequence[object] = value.shape if isinstance(value, torch.Tensor) else ()
        for dimension, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol and str(size) not in shown:
                hidden.setdefault(str(size), (node.name, dimension))
    if not hidden:
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    placeholders = {node.name: node for node in placeholders_of(graph)}
    with graph.inserting_after(list(placeholders.values())[-1]):
        for name, dimension in hidden.values():
            number = graph.call_function(_aten.sym_size.int, (placeholders[name], dimension))
            set_value(number, tensor_of(placeholders[name]).shape[dimension])
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
    # The steps would be laid out as their operands are, the norm need not.
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


_RANKS = (4, 5)
_CONVOLUTIONS = {_aten.convolution.default: (0,), _aten.convolution_backward.default: (0, 1)}
"""Operators that like images channels last → which of their arguments are images."""
_BY_MEMORY = (
    _aten.as_strided.default, _aten.as_strided_scatter.default, _aten.view.default, _aten._unsafe_view.default,
    _aten.view.dtype, _aten.view_as_complex.default,
)  # fmt: skip
"""Operators that depend on how their argument is laid out in memory, if torch should run them."""


@stage
def native_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], *, num_fwd_outputs: int, **others: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split so that few bytes are saved, then lay out what is saved."""
    # The backend names this function; a start without a trace never calls it.
    from precast.partition import min_cut_rematerialization_partition

    joint_module = apply_pass(show_sizes, apply_pass(keep_statistics, joint_module))
    forward, backward = min_cut_rematerialization_partition(
        joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **others
    )
    if target_for(devices_of(joint_module.graph)).likes_channels_last:
        lay_out_saved_images(forward, backward, num_fwd_outputs=num_fwd_outputs)
        lay_out_inner_images(backward)
    return forward, backward


def lay_out_saved_images(forward: fx.GraphModule, backward: fx.GraphModule, *, num_fwd_outputs: int) -> None:
    """Change, in place, what tracing says of saved values that are between convolutions."""
    results = results_of(forward.graph)
    kept = _seen_through_views(results[:num_fwd_outputs])
    saved = {node.name: node for node in results[num_fwd_outputs:] if isinstance(node, fx.Node) and node not in kept}
    images = _images(forward.graph) | _images(backward.graph)
    for placeholder in placeholders_of(backward.graph):
        node = saved.get(placeholder.name)
        if node is not None and node.name in images and _may_be_laid_out(node, placeholder):
            _lay_out(node)
            set_value(placeholder, value_of(node))


def lay_out_inner_images(backward: fx.GraphModule) -> None:
    """The same for what nobody outside sees: where the graph is cut into segments, it passes from one to the next."""
    images, results = _images(backward.graph), _seen_through_views(results_of(backward.graph))
    for node in backward.graph.nodes:
        if node.name in images and node not in results and _may_be_laid_out(node, node):
            _lay_out(node)


def _seen_through_views(results: Sequence[object]) -> set[fx.Node]:
    """Results, and what they are views of: how that is laid out, the caller sees."""
    seen: set[fx.Node] = set()
    for node in results:
        while isinstance(node, fx.Node) and node not in seen:
            seen.add(node)
            node = node.args[0] if node.target is not getitem and Fact.VIEW in facts_of(node) else None
    return seen


def _lay_out(node: fx.Node) -> None:
    """Say that ``node`` is laid out channels last; where it is one of several results, its operator says so too."""
    value = value_of(node)
    assert isinstance(value, FakeTensor)
    with value.fake_mode:
        arranged = torch.empty_strided(value.shape, _channels_last_strides(value), dtype=value.dtype)
    set_value(node, arranged)
    if node.target is getitem:
        (operator,) = node.all_input_nodes
        values = value_of(operator)
        assert isinstance(values, tuple | list)
        set_value(operator, tuple(arranged if place == node.args[1] else each for place, each in enumerate(values)))


def _may_be_laid_out(node: fx.Node, placeholder: fx.Node) -> bool:
    is_view = node.target is not getitem and Fact.VIEW in facts_of(node)
    if node.op != "call_function" or is_view or not isinstance(value_of(node), FakeTensor):
        return False
    return all(user.target not in _BY_MEMORY for user in (*node.users, *placeholder.users))


def _channels_last_strides(value: torch.Tensor) -> tuple[Any, ...]:
    _, channels, *spatial = value.shape
    strides: list[Any] = [channels]
    for size in reversed(spatial[1:]):
        strides.insert(0, strides[0] * size)
    return (strides[0] * spatial[0], 1, *strides)


def _images(graph: fx.Graph) -> set[str]:
    """Names of what convolutions read and write, and of all that is computed along with it."""
    waiting = [node for each in graph.nodes for node in _at_convolution(each)]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found and _is_image(node):
            found.add(node)
            waiting += [each for each in _beside(node) if _go_along(node, each)]
    return {node.name for node in found}


def _beside(node: fx.Node) -> Iterator[fx.Node]:
    """What a node reads and who reads it; of an operator with several results, all that it reads and returns."""
    for each in (*node.all_input_nodes, *node.users):
        if each.target not in _CONVOLUTIONS and has_value(each) and isinstance(value_of(each), tuple | list):
            yield from (*each.all_input_nodes, *each.users)
        else:
            yield each


def _at_convolution(node: fx.Node) -> list[fx.Node]:
    if node.target not in _CONVOLUTIONS:
        return []
    places = _CONVOLUTIONS[node.target]
    images = [each for place in places if isinstance(each := node.args[place], fx.Node)]
    return [*images, *([node] if node.target is _aten.convolution.default else node.users)]


def _is_image(node: fx.Node) -> bool:
    value = value_of(node) if has_value(node) else None
    return isinstance(value, torch.Tensor) and value.ndim in _RANKS


def _go_along(node: fx.Node, other: fx.Node) -> bool:
    """Whether both have the same channels, and neither is an operator that takes dimensions apart."""
    operators = (each for each in (node, other) if each.op == "call_function" and each.target is not getitem)
    if not _is_image(other) or any(Fact.VIEW in facts_of(each) for each in operators):
        return False
    first, second = value_of(node), value_of(other)
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    return first.shape[:2] == second.shape[:2] and first.ndim == second.ndim
