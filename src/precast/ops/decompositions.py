"""Which ops may be taken apart into simpler ones, and how.

Tables map an op to a function that computes the same from simpler ops. Pass them as ``decompositions=``.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._ops import OperatorBase

DecompositionTable: TypeAlias = dict[OperatorBase, Callable[..., object]]

_aten = torch.ops.aten

_ACTIVATIONS = [_aten.elu, _aten.leaky_relu, _aten.hardtanh, _aten.hardswish, _aten.hardsigmoid, _aten.softplus]
_BACKWARDS_OF_ACTIVATIONS = [
    _aten.elu_backward,
    _aten.gelu_backward,
    _aten.hardsigmoid_backward,
    _aten.hardswish_backward,
    _aten.hardtanh_backward,
    _aten.leaky_relu_backward,
    _aten.mish_backward,
    _aten.sigmoid_backward,
    _aten.silu_backward,
    _aten.softplus_backward,
    _aten.tanh_backward,
    _aten.threshold_backward,
]
_BATCH_NORM = [
    _aten.cudnn_batch_norm,
    _aten.cudnn_batch_norm_backward,
    _aten.native_batch_norm_backward,
    _aten.batch_norm_backward,
]
_SMALL_OPS = [
    _aten.detach,
    _aten.conj_physical,
    _aten.is_same_size,
    _aten.masked_fill,
    _aten.native_dropout_backward,
]

# What makes backward formulas fuse: activations, batch norm, masks. Matmul-like and random ops stay whole.
default_decompositions: DecompositionTable = dict(
    get_decompositions([*_ACTIVATIONS, *_BACKWARDS_OF_ACTIVATIONS, *_BATCH_NORM, *_SMALL_OPS])
)


def _outside_core(table: DecompositionTable) -> DecompositionTable:
    return {op: rule for op, rule in table.items() if torch.Tag.core not in getattr(op, "tags", ())}


# Takes a graph down to the Core ATen set; an op of that set is never taken apart.
core_decompositions: DecompositionTable = _outside_core(dict(_core_aten_decompositions_post_autograd()))
