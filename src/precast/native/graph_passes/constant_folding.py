"""Constant folding: compute once what depends on constants alone.

Before::

    weight    = get_attr[weight]
    positions = arange(128)
    rows      = embedding(weight, positions)
    sum       = add(x, rows)

After::

    rows = get_attr[folded_0]
    sum  = add(x, rows)

Results of factory functions, like ``positions``, remain operations where other nodes read them; so do transposed or
sliced constants, which cost nothing to read.

Batch norm folding: a convolution with constant weights absorbs the batch norm that follows it.

Before::

    conv = convolution(x, weight, None, …)
    norm = _native_batch_norm_legit_no_training(conv, gamma, beta, mean, variance, …)
    y    = norm[0]

After, with ``scale = gamma / sqrt(variance + eps)``::

    y = convolution(x, weight * scale, beta - mean * scale, …)
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.graph.nodes import constant_sources_of, has_value, set_constant_sources, tensor_of, value_of
from precast.ops.facts import Fact, facts_of

MOST_GROWTH = 4
"""A folded constant is at most this many times as large as its inputs."""


_SHORT_BYTES = 4096
"""Constants smaller than this may grow."""


def fold_constants(module: fx.GraphModule) -> None:
    """Replace, in place, values that depend on ``get_attr`` nodes alone by ``get_attr`` nodes."""
    known: dict[fx.Node, Any] = {}
    sizes: dict[fx.Node, int] = {}
    sources: dict[fx.Node, frozenset[str]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                known[node], sizes[node], sources[node] = value, value.numel(), constant_sources_of(node)
        elif _may_be_folded(node, known):
            value = _computed(node, known)
            size = sum(sizes[each] for each in node.all_input_nodes)
            if _stays_small(node, known, value) and all(
                each.numel() <= MOST_GROWTH * max(size, 1024) for each in _tensors(value)
            ):
                known[node], sizes[node] = value, size
                sources[node] = frozenset().union(*(sources[each] for each in node.all_input_nodes))
    for node in _read_by_others(known):
        is_made_of_constants = node.op == "call_function" and sizes[node] > 0 and isinstance(known[node], torch.Tensor)
        if is_made_of_constants and node.target not in _FREE_VIEWS:
            folded = add_constant(module, node, known[node], like=node, name="folded", sources=sources[node])
            node.replace_all_uses_with(folded)
    module.graph.eliminate_dead_code()


def _stays_small(node: fx.Node, known: dict[fx.Node, Any], value: object) -> bool:
    """Whether 8-bit weights do not become larger: weights are quantized so that little is read."""
    sources = [tensor for each in node.all_input_nodes for tensor in _tensors(known[each])]
    if not any(each.element_size() == 1 and each.dtype != torch.bool for each in sources):
        return True
    size = max(sum(each.nbytes for each in sources), _SHORT_BYTES)
    return all(each.nbytes <= size for each in _tensors(value))


_aten = torch.ops.aten
_FREE_VIEWS = frozenset({
    _aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default, _aten.expand.default,
    _aten.select.int, _aten.slice.Tensor, _aten.detach.default, _aten.alias.default, _aten.view.default,
})  # fmt: skip
"""View operators: the result is their argument's memory with other strides."""


def _read_by_others(known: dict[fx.Node, Any]) -> list[fx.Node]:
    """The nodes among ``known`` that are read by nodes still computed, or by a view that is."""
    read: set[fx.Node] = set()
    for node in reversed(known):
        if any(user not in known or (user in read and user.target in _FREE_VIEWS) for user in node.users):
            read.add(node)
    return [node for node in known if node in read]


def add_constant(
    module: fx.GraphModule, before: fx.Node, value: torch.Tensor, *, like: fx.Node, name: str, sources: frozenset[str]
) -> fx.Node:
    """Add an attribute that holds ``value`` to the module, read at ``before``; its traced value is that of ``like``.

    ``sources`` are the inputs that it was computed from.
    """
    number = 0
    while hasattr(module, f"{name}_{number}"):
        number += 1
    module.register_buffer(f"{name}_{number}", value, persistent=False)
    with module.graph.inserting_before(before):
        constant = module.graph.get_attr(f"{name}_{number}")
    constant.meta = dict(like.meta)
    set_constant_sources(constant, sources)
    return constant


def _may_be_folded(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if node.op != "call_function" or not all(each in known for each in node.all_input_nodes) or not has_value(node):
        return False
    if node.target is getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    is_plain = not facts_of(node) & {Fact.RANDOM, Fact.EFFECTFUL, Fact.MUTATING, Fact.DATA_DEPENDENT}
    return is_plain and all(isinstance(each, torch.Tensor) for each in _leaves(value_of(node)))


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: known[argument])
    with torch.no_grad():
        return target(*args, **kwargs)


def _leaves(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _tensors(value: object) -> list[torch.Tensor]:
    return [each for each in _leaves(value) if isinstance(each, torch.Tensor)]


_CONVOLUTION = torch.ops.aten.convolution.default
_INFERENCE_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten._native_batch_norm_legit.default)
"""Operators with a flag for training; the one above never trains."""


def fold_batch_norms(module: fx.GraphModule) -> None:
    """Fold, in place, every batch norm over the result of a convolution that nothing else reads."""
    for norm in list(module.graph.nodes):
        if _is_inference_norm(norm) and _may_be_absorbed(norm):
            _fold(module, norm)
    module.graph.eliminate_dead_code()


def _is_inference_norm(node: fx.Node) -> bool:
    return node.target is _INFERENCE_NORM or (node.target in _NORMS and node.args[5] is False)


def _may_be_absorbed(norm: fx.Node) -> bool:
    convolution = norm.args[0]
    if not isinstance(convolution, fx.Node) or convolution.target is not _CONVOLUTION or len(convolution.users) > 1:
        return False
    _, weight, bias, _, _, _, is_transposed, _, groups = convolution.args
    if is_transposed and groups != 1:
        return False
    constants = [weight, *([] if bias is None else [bias]), *(each for each in norm.args[1:5] if each is not None)]
    reads_output_only = all(user.target is getitem and user.args[1] == 0 for user in norm.users)
    nodes = [each for each in constants if isinstance(each, fx.Node) and each.op == "get_attr"]
    return reads_output_only and len(nodes) == len(constants) and len({tensor_of(each).dtype for each in nodes}) == 1


def _fold(module: fx.GraphModule, norm: fx.Node) -> None:
    convolution = norm.args[0]
    assert isinstance(convolution, fx.Node)
    source, weight_node, _, *geometry = convolution.args
    assert isinstance(weight_node, fx.Node)
    mean_node = norm.args[3]
    assert isinstance(mean_node, fx.Node)
    old = _constant(module, weight_node)
    weight, bias = _folded(module, convolution, norm)
    # In the layout of the old weight, as in its traced value.
    stored = torch.empty_like(old).copy_(weight)
    constants = [each for each in (*convolution.args[1:3], *norm.args[1:5]) if isinstance(each, fx.Node)]
    sources = frozenset().union(*map(constant_sources_of, constants))
    new_weight = add_constant(module, convolution, stored, like=weight_node, name="folded_weight", sources=sources)
    new_bias = add_constant(
        module, convolution, bias.to(old.dtype), like=mean_node, name="folded_bias", sources=sources
    )
    with module.graph.inserting_before(convolution):
        folded = module.graph.call_function(_CONVOLUTION, (source, new_weight, new_bias, *geometry))
    folded.meta = dict(convolution.meta)
    for output in list(norm.users):
        output.replace_all_uses_with(folded)


def _folded(module: fx.GraphModule, convolution: fx.Node, norm: fx.Node) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight and the bias that compute both, folded in double precision."""
    weight, bias, gamma, beta, mean, variance = (
        None if each is None else _constant(module, each).double() for each in (*convolution.args[1:3], *norm.args[1:5])
    )
    assert weight is not None
    assert mean is not None
    assert variance is not None
    eps = norm.args[-1]
    assert isinstance(eps, float)
    scale = (variance + eps).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = (-mean if bias is None else bias - mean) * scale
    channels = [1] * weight.ndim
    channels[1 if convolution.args[6] else 0] = -1
    return weight * scale.reshape(channels), shift if beta is None else shift + beta


def _constant(module: fx.GraphModule, node: object) -> torch.Tensor:
    assert isinstance(node, fx.Node)
    value = attrgetter(str(node.target))(module)
    assert isinstance(value, torch.Tensor)
    return value
