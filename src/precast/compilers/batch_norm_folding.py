"""Let a convolution with constant weights do the work of the batch norm that follows it.

Before::

    conv = convolution(x, weight, None, …)
    norm = _native_batch_norm_legit_no_training(conv, gamma, beta, mean, variance, …)
    y    = norm[0]

After, with ``scale = gamma / sqrt(variance + eps)``::

    y = convolution(x, weight * scale, beta - mean * scale, …)
"""

from __future__ import annotations

from operator import attrgetter, getitem

import torch
from torch import fx

from precast.compilers.constant_folding import add_constant
from precast.ir.node_meta import constant_sources_of, tensor_of

_CONVOLUTION = torch.ops.aten.convolution.default
_INFERENCE_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten._native_batch_norm_legit.default)
"""Operators that are told whether they train; the one above never does."""


def fold_batch_norms(module: fx.GraphModule) -> None:
    """Fold, in place, every batch norm over the result of a convolution that nobody else reads."""
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
    # In the layout of the old weight: what was traced says so.
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
    """The weight and the bias that do both, in double precision."""
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
