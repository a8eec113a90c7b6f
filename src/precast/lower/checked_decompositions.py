"""Operators whose kernels look at values before they compute, taken apart with that look.

Before: ``nll_loss_forward(x, target)``
After:  ``target_1 = checked(target, target < 0 | target >= 3); gather(x, target_1); …``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format

from precast.ops.checks import checked
from precast.ops.decompositions import DecompositionTable

_aten = torch.ops.aten


def _fraction(value: Tensor, name: str) -> Tensor:
    is_fraction = (value >= 0) & (value <= 1)
    result: Tensor = checked(value, ~is_fraction, "value", f"all elements of {name} should be between 0 and 1")
    return result


def binary_cross_entropy(source: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    loss: Tensor = decomposition_table[_aten.binary_cross_entropy.default](
        _fraction(source, "input"), _fraction(target, "target"), weight, reduction
    )
    return loss


def _nll_loss(operator: torch._ops.OpOverload) -> Callable[..., tuple[Tensor, Tensor]]:
    def nll_loss_forward(
        source: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        classes = source.shape[min(1, source.ndim - 1)]
        is_outside = (target != ignore_index) & ((target < 0) | (target >= classes))
        inside = checked(target, is_outside, "index", f"Target is out of bounds for {classes} classes.")
        loss: tuple[Tensor, Tensor] = decomposition_table[operator](source, inside, weight, reduction, ignore_index)
        return loss

    return nll_loss_forward


def _inside(indices: Tensor, output_size: Sequence[int]) -> Tensor:
    is_outside = (indices < 0) | (indices >= prod(output_size))
    sizes = "x".join(map(str, output_size))
    message = f"Found an invalid max index (output volumes are of size {sizes})"
    result: Tensor = checked(indices, is_outside, "value", message)
    return result


def max_unpool2d(source: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    inside = _inside(indices, output_size)
    unpooled: Tensor = decomposition_table[_aten.max_unpool2d.default](source, inside, output_size)
    return unpooled.contiguous(memory_format=suggest_memory_format(source))


def max_unpool3d(
    source: Tensor, indices: Tensor, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    inside = _inside(indices, output_size)
    unpooled: Tensor = decomposition_table[_aten.max_unpool3d.default](source, inside, output_size, stride, padding)
    return unpooled


CHECKED_DECOMPOSITIONS: DecompositionTable = {
    _aten.binary_cross_entropy.default: binary_cross_entropy,
    _aten.max_unpool2d.default: max_unpool2d,
    _aten.max_unpool3d.default: max_unpool3d,
    _aten.nll_loss_forward.default: _nll_loss(_aten.nll_loss_forward.default),
    _aten.nll_loss2d_forward.default: _nll_loss(_aten.nll_loss2d_forward.default),
}
