"""Decomposition tables, and the strides that eager gives results of elementwise operators.

Tables map an op to a function that computes the same by simpler ops. Pass them as ``decompositions=``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._ops import OperatorBase, OpOverload

from precast.ops.cost import size_hint

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

# Decompositions that let backward formulas fuse: activations, batch norm, masks. Matmul-like and random ops stay whole.
default_decompositions: DecompositionTable = dict(
    get_decompositions([*_ACTIVATIONS, *_BACKWARDS_OF_ACTIVATIONS, *_BATCH_NORM, *_SMALL_OPS])
)


def _outside_core(table: DecompositionTable) -> DecompositionTable:
    return {op: rule for op, rule in table.items() if torch.Tag.core not in getattr(op, "tags", ())}


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Targets end at the first -1; torch's decomposition counts those behind it."""
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    is_valid = (targets == -1).cumsum(-1) == 0
    places = torch.where(is_valid, targets, 0)
    is_target = torch.zeros_like(rows).scatter_add(1, places, is_valid.to(x.dtype)) > 0
    margins = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)
    is_counted = is_valid.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(is_counted, margins.clamp(min=0), 0).sum((1, 2)) / rows.shape[1]
    total = {0: loss.reshape(target.shape[:-1]), 1: loss.mean(), 2: loss.sum()}[reduction]
    return total, is_target.to(x.dtype).reshape(target.shape)


# Decomposes a graph to the Core ATen opset; ops of that set are never decomposed.
core_decompositions: DecompositionTable = _outside_core(dict(_core_aten_decompositions_post_autograd())) | {
    # The forward-only form does not support gradients; both compute the same.
    _aten._embedding_bag_forward_only.default: _aten._embedding_bag.default,
    _aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
}


# In eager, the result has the strides of the operand.
_LIKE_OPERAND = {_aten.hardtanh.default, _aten.nan_to_num.default}
# Copies with a requested memory format, or operators computed in several steps.
_OTHERWISE = {
    _aten.clone.default, _aten._to_copy.default, _aten.ldexp.Tensor,
    _aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.pow.Scalar,
}  # fmt: skip
# Elementwise unless they are reduced.
_LOSSES = {_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.huber_loss.default}
_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat)


def eager_strides(result: Tensor, operands: Sequence[object]) -> list[int | torch.SymInt] | None:
    """The strides that eager gives the result, or None if it has them; symbolic sizes are compared by their hints."""
    tensors = [each for each in operands if isinstance(each, Tensor)]
    if any(each.layout is not torch.strided for each in (result, *tensors)):
        return None
    if any(_depends_on_data(size) for each in (result, *tensors) for size in (*each.shape, *each.stride())):
        return None
    strides = _iterated_strides(result.shape, [_Laid.of(each) for each in tensors])
    steps = zip(*(map(size_hint, each) for each in (result.shape, result.stride(), strides)), strict=True)
    return None if all(size == 1 or mine == wanted for size, mine, wanted in steps) else strides


def strides_of_ones(op: OpOverload, result: Tensor, args: Sequence[object]) -> list[int | torch.SymInt] | None:
    """The strides of an elementwise operator's result, with eager's strides for its dimensions of size 1.

    None if it has them. Strides of dimensions of size 1 affect the layouts that ``cat``, convolutions and norms choose.
    """
    tensors = [each for each in args if isinstance(each, Tensor)]
    if not _is_iterated(op) or not tensors:
        return None
    if any(each.layout is not torch.strided or each.device.type != "cpu" for each in (result, *tensors)):
        return None
    sizes = tuple(map(size_hint, result.shape))
    if 1 not in sizes or 0 in sizes or any(map(_depends_on_data, result.shape)):
        return None
    operands = _operands(op, args)
    is_kept = op in _LIKE_OPERAND and operands[0].is_dense()
    strides = list(operands[0].given) if is_kept else _iterated_strides(result.shape, operands)
    hints = zip(sizes, map(size_hint, result.stride()), map(size_hint, strides), strict=True)
    differing = [size for size, mine, wanted in hints if mine != wanted]
    return strides if differing and all(size == 1 for size in differing) else None


def _depends_on_data(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.has_hint()


@cache
def _is_iterated(op: OpOverload) -> bool:
    is_elementwise = op.namespace == "aten" and (op in _LOSSES or torch.Tag.pointwise in op.tags)
    return is_elementwise and op not in _OTHERWISE and not op._schema.is_mutable


def _operands(op: OpOverload, args: Sequence[object]) -> list[_Laid]:
    """The operands that eager iterates over; a number in the place of a tensor is zero-dimensional."""
    found = []
    for argument, value in zip(op._schema.arguments, args, strict=False):
        if isinstance(value, Tensor):
            found.append(_Laid.of(value))
        elif isinstance(value, _NUMBERS) and (str(argument.type) == "Tensor" or argument.name == "other"):
            found.append(_Laid((), (), ()))
    return found


@dataclass(frozen=True)
class _Laid:
    """Sizes and strides as numbers; ``given`` are the original, perhaps symbolic, strides."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    given: tuple[int | torch.SymInt, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> _Laid:
        strides = tuple(tensor.stride())
        return cls(tuple(map(size_hint, tensor.shape)), tuple(map(size_hint, strides)), strides)

    def is_packed(self, order: Sequence[int]) -> bool:
        """Whether the dimensions are dense in this order, the first one innermost."""
        length = 1
        for dim in order:
            if self.sizes[dim] != 1 and self.strides[dim] != length:
                return False
            length *= self.sizes[dim]
        return True

    def is_dense(self) -> bool:
        return self.is_packed(sorted(range(len(self.sizes)), key=lambda dim: (self.sizes[dim] == 1, self.strides[dim])))

    def broadcast(self, sizes: Sequence[int]) -> list[int]:
        """The strides after broadcasting to these sizes: 0 for broadcast dimensions."""
        new = len(sizes) - len(self.sizes)
        kept = zip(self.sizes, self.strides, sizes[new:], strict=True)
        return [0] * new + [0 if mine == 1 and wanted != 1 else stride for mine, stride, wanted in kept]


def _iterated_strides(shape: Sequence[int | torch.SymInt], operands: Sequence[_Laid]) -> list[int | torch.SymInt]:
    """The strides as ``TensorIterator`` computes them: directly for operands of equal sizes, else by sorting."""
    dims = range(len(shape))
    if all(each.sizes == operands[0].sizes for each in operands):
        for order in (list(reversed(dims)), *([[1, 3, 2, 0]] if len(shape) == 4 else [])):
            if all(each.is_packed(order) for each in operands):
                return _packed_strides(shape, order)
        if all(each.is_dense() and each.strides == operands[0].strides for each in operands):
            return list(operands[0].given)
    sizes = tuple(map(size_hint, shape))
    return _packed_strides(shape, _sorted_dims(sizes, [each.broadcast(sizes) for each in operands]))


def _packed_strides(shape: Sequence[int | torch.SymInt], order: Sequence[int]) -> list[int | torch.SymInt]:
    strides: list[int | torch.SymInt] = [1] * len(shape)
    length: int | torch.SymInt = 1
    for dim in order:
        strides[dim] = length
        length = length * shape[dim]
    return strides


def _sorted_dims(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Dimensions from innermost to outermost, by insertion sort: the comparison may be ambiguous."""
    order = list(reversed(range(len(sizes))))
    for last in range(1, len(order)):
        moved = last
        for other in reversed(range(last)):
            sign = _compared(order[other], order[moved], sizes, strides)
            if sign > 0:
                order[other], order[moved] = order[moved], order[other]
                moved = other
            elif sign < 0:
                break
    return order


def _compared(inner: int, outer: int, sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Positive if the inner dimension belongs outside the other, negative if not, 0 if ambiguous."""
    for each in strides:
        if each[inner] == 0 or each[outer] == 0:
            continue
        if each[inner] != each[outer]:
            return 1 if each[inner] > each[outer] else -1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0
