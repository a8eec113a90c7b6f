"""The native backend's partition: saved images, and images inside the backward, are laid out channels last.

Before: ``conv`` is saved as ``f32[8, 64, 56, 56]`` with strides (200704, 3136, 56, 1), as eager lays it out
After:  the same with strides (200704, 1, 3584, 64), for the forward's result and the backward's input

The two graphs alone see what is saved, and convolutions on either side prefer this layout.

A batch norm's mean and inverse deviation are saved for the backward, so that only its formula is recomputed.

Before::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
        y    = norm[0]                                   to recompute it, the backward reduces x again

After, with both statistics saved::

    norm = _native_batch_norm_legit_functional(x, weight, bias, …)
    y    = (x - norm[1]) * norm[2] * weight + bias

Every size of a primal is made a node, so that a backward whose own inputs do not show it can save it.

Before: ``primals_1: f32[s0, s1]``, and the backward receives only ``f32[Min(s0, s1)]``
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
from precast.native.graph_passes.normalizers import show_normalizers
from precast.native.targets import target_for
from precast.ops.facts import Fact, facts_of

_aten = torch.ops.aten
_NORM = _aten._native_batch_norm_legit_functional.default
_DTYPES = (torch.float32, torch.float64)


def keep_statistics(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which all training norms are decomposed; the graph itself if there are none."""
    if not any(map(_is_trained, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if _is_trained(node):
            _decompose(graph, node)
    return fx.GraphModule(module, graph)


def show_sizes(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a joint graph in which each size of a primal is a node; the graph itself if all are already."""
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
    # Statistics in a narrower type than the norm computed with have lost precision.
    return _result(node, 0) is not None and _statistics_dtype(node) in _DTYPES


def _statistics_dtype(norm: fx.Node) -> torch.dtype:
    values = value_of(norm)
    assert isinstance(values, tuple | list)
    mean = values[1]
    assert isinstance(mean, torch.Tensor)
    return mean.dtype


def _result(norm: fx.Node, place: int) -> fx.Node | None:
    return next((user for user in norm.users if user.target is getitem and user.args[1] == place), None)


def _decompose(graph: fx.Graph, norm: fx.Node) -> None:
    source, weight, bias = norm.args[:3]
    output = _result(norm, 0)
    assert isinstance(source, fx.Node)
    assert output is not None
    # Recomputing the norm would read its whole input for two numbers per channel.
    set_checkpoint_tag(norm, 0, CheckpointPolicy.MUST_SAVE)

    def call(target: OpOverload, *arguments: Argument, **choices: Argument) -> fx.Node:
        made = graph.call_function(target, arguments, choices)
        values = (value_of(each) if isinstance(each, fx.Node) else each for each in arguments)
        set_value(made, target(*values, **choices))
        copy_provenance(norm, made)
        return made

    def as_type(value: fx.Node, dtype: torch.dtype) -> fx.Node:
        return value if tensor_of(value).dtype is dtype else call(_aten._to_copy.default, value, dtype=dtype)

    def along_channels(value: Argument) -> fx.Node:
        return call(_aten.view.default, value, [1, -1, *[1] * (tensor_of(source).ndim - 2)])

    mean, spread = (_result_at_once(graph, norm, place) for place in (1, 2))
    with graph.inserting_before(output):
        scale = spread if weight is None else call(_aten.mul.Tensor, spread, weight)
        # Between its steps the operator keeps the precision of the statistics.
        centred = call(_aten.sub.Tensor, as_type(source, _statistics_dtype(norm)), along_channels(mean))
        value = call(_aten.mul.Tensor, centred, along_channels(scale))
        value = value if bias is None else call(_aten.add.Tensor, value, along_channels(bias))
        value = as_type(value, tensor_of(source).dtype)
    # The decomposed steps would take the layout of their operands, which may differ from the norm's.
    set_value(value, value_of(output))
    output.replace_all_uses_with(value)
    graph.erase_node(output)


def _result_at_once(graph: fx.Graph, norm: fx.Node, place: int) -> fx.Node:
    """One of the norm's results, taken directly after it; later getitem nodes of the same result are replaced."""
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
"""Operators that prefer images channels last → which of their arguments are images."""
_BY_MEMORY = (
    _aten.as_strided.default, _aten.as_strided_scatter.default, _aten.view.default, _aten._unsafe_view.default,
    _aten.view.dtype, _aten.view_as_complex.default,
)  # fmt: skip
"""Operators whose result depends on the strides of their argument, if torch runs them."""


@stage
def native_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], *, num_fwd_outputs: int, **others: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Partition so that few bytes are saved, then choose the layout of what is saved."""
    # Imported here: the backend refers to this function, and a start from the cache never calls it.
    from precast.partition import min_cut_rematerialization_partition

    for prepare in (keep_statistics, show_normalizers, show_sizes):
        joint_module = apply_pass(prepare, joint_module)
    forward, backward = min_cut_rematerialization_partition(
        joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **others
    )
    if target_for(devices_of(joint_module.graph)).likes_channels_last:
        lay_out_saved_images(forward, backward, num_fwd_outputs=num_fwd_outputs)
        lay_out_inner_images(backward)
    return forward, backward


def lay_out_saved_images(forward: fx.GraphModule, backward: fx.GraphModule, *, num_fwd_outputs: int) -> None:
    """Change, in place, the traced layouts of saved values that are between convolutions."""
    results = results_of(forward.graph)
    kept = _with_bases(results[:num_fwd_outputs])
    saved = {node.name: node for node in results[num_fwd_outputs:] if isinstance(node, fx.Node) and node not in kept}
    images = _images(forward.graph) | _images(backward.graph)
    for placeholder in placeholders_of(backward.graph):
        node = saved.get(placeholder.name)
        if node is not None and node.name in images and _may_be_laid_out(node, placeholder):
            _lay_out(node)
            set_value(placeholder, value_of(node))


def lay_out_inner_images(backward: fx.GraphModule) -> None:
    """The same for values inside the backward: they are passed between segments where the graph is split."""
    images, results = _images(backward.graph), _with_bases(results_of(backward.graph))
    for node in backward.graph.nodes:
        if node.name in images and node not in results and _may_be_laid_out(node, node):
            _lay_out(node)


def _with_bases(results: Sequence[object]) -> set[fx.Node]:
    """Results and their bases, if they are views: their layout is visible to the caller."""
    seen: set[fx.Node] = set()
    for node in results:
        while isinstance(node, fx.Node) and node not in seen:
            seen.add(node)
            node = node.args[0] if node.target is not getitem and Fact.VIEW in facts_of(node) else None
    return seen


def _lay_out(node: fx.Node) -> None:
    """Mark ``node`` as channels last; if it is one of several results, in the value of its operator too."""
    value = value_of(node)
    assert isinstance(value, FakeTensor)
    with value.fake_mode:
        arranged = value.new_empty_strided(value.shape, _channels_last_strides(value))
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
    """Names of what convolutions read and write, and of everything that shares their channels."""
    waiting = [node for each in graph.nodes for node in _at_convolution(each)]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found and _is_image(node):
            found.add(node)
            waiting += [each for each in _neighbours(node) if _share_layout(node, each)]
    return {node.name for node in found}


def _neighbours(node: fx.Node) -> Iterator[fx.Node]:
    """A node's arguments and users; for an operator with several results, all of its arguments and results."""
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


def _share_layout(node: fx.Node, other: fx.Node) -> bool:
    """Whether both have the same channels, and neither is a view operator."""
    operators = (each for each in (node, other) if each.op == "call_function" and each.target is not getitem)
    if not _is_image(other) or any(Fact.VIEW in facts_of(each) for each in operators):
        return False
    first, second = value_of(node), value_of(other)
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    return first.shape[:2] == second.shape[:2] and first.ndim == second.ndim
