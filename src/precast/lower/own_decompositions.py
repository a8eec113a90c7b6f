"""Operators that torch does not take apart, in terms of others: mostly gradients, which fuse into a loop or two.

Each function computes what the operator of its name computes, and takes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from precast.lower.grid_sampling import grid_sampler_2d_backward
from precast.lower.recurrent import mkldnn_rnn_layer
from precast.ops.decompositions import DecompositionTable

_aten = torch.ops.aten
_MEAN = 1
_torch_linspace = decomposition_table[_aten.linspace.default]


def addbmm(source: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not source.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    product = torch.bmm(batch1, batch2).sum(0, dtype=source.dtype)
    product = product if alpha == 1 else product * alpha
    # A factor of 0 silences NaN and infinity.
    return product if beta == 0 else product + (source if beta == 1 else source * beta)


def frac(source: Tensor) -> Tensor:
    # Torch 2.11 takes it apart otherwise, and a zero gets another sign.
    return source - source.trunc()


def trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    factors = []
    for factor, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in sorted(expanded):
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(tuple(sumdim)) if sumdim else product


def _distance_slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """How a distance changes with a coordinate's difference; nothing where two points meet."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == float("inf"):
        return difference.sign() * (difference.abs() == distance)
    is_apart = distance != 0
    safe = torch.where(is_apart, distance, 1)
    if p == 2:
        return torch.where(is_apart, difference / safe, 0)
    slope = difference.sign() * (difference.abs() / safe).pow(p - 1)
    return torch.where(is_apart & (difference != 0), slope, 0)


def cdist_backward(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    slope = _distance_slope(difference, cdist.unsqueeze(-1), p)
    return (gradient.unsqueeze(-1) * slope).sum(-2).sum_to_size(x1.shape)


def pdist_backward(gradient: Tensor, source: Tensor, p: float, pdist: Tensor) -> Tensor:
    count = source.shape[0]
    if pdist.shape[0] == 0:
        return torch.zeros_like(source)
    number = torch.arange(count)
    low, high = torch.minimum(number[:, None], number), torch.maximum(number[:, None], number)
    # Pairs are counted row by row; a point and itself are no pair, and the difference makes that 0.
    pair = (low * count - low * (low + 1) // 2 + high - low - 1).clamp(0, pdist.shape[0] - 1)
    difference = source[:, None] - source[None]
    slope = _distance_slope(difference, pdist[pair].unsqueeze(-1), p)
    return (gradient[pair].unsqueeze(-1) * slope).sum(1)


def multi_margin_loss_backward(
    gradient: Tensor, source: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:  # fmt: skip
    rows = source.reshape(1, -1) if source.ndim < 2 else source
    wanted = target.reshape(-1, 1)
    distance = margin - rows.gather(1, wanted) + rows
    classes = torch.arange(rows.shape[1])
    is_other = (distance > 0) & (classes != wanted)
    share = torch.ones_like(distance) if p == 1 else 2 * distance
    share = share if weight is None else share * weight[wanted]
    share = torch.where(is_other, share, 0) / (rows.numel() if reduction == _MEAN else rows.shape[1])
    result = torch.where(classes == wanted, -share.sum(1, keepdim=True), share)
    scale = gradient.reshape(-1, 1) if gradient.ndim else gradient
    return (result * scale).reshape(source.shape)


def multilabel_margin_loss_backward(
    gradient: Tensor, source: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    rows, wanted, known = (each.reshape(1, -1) if source.ndim < 2 else each for each in (source, target, is_target))
    # Targets count up to the first that is negative.
    is_wanted = (wanted < 0).to(torch.int64).cumsum(1) == 0
    places = wanted.clamp(min=0)
    distance = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)
    is_close = is_wanted.unsqueeze(2) & (known.unsqueeze(1) == 0) & (distance > 0)
    pairs = is_close.to(source.dtype)
    result = pairs.sum(1).scatter_add(1, places, -pairs.sum(2))
    result = result / (rows.numel() if reduction == _MEAN else rows.shape[1])
    scale = gradient.reshape(-1, 1) if gradient.ndim else gradient
    return (result * scale).reshape(source.shape)


def smooth_l1_loss_backward(gradient: Tensor, source: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = source - target
    scaled = gradient / source.numel() if reduction == _MEAN else gradient
    # Torch's own takes the sign of large differences, which is 0 for one that is no number.
    is_large, sign = difference.abs() >= beta, torch.where(difference <= -beta, -1, 1)
    return torch.where(is_large, scaled * sign, scaled * difference / (beta or 1))


def linspace(
    start: float | Tensor, end: float | Tensor, steps: int, *, dtype: torch.dtype | None = None, **choices: object
) -> Tensor:
    if dtype is None or dtype.is_floating_point or dtype.is_complex or steps < 2:
        # Between tensors, torch's own wants to know the device.
        choices["device"] = choices.get("device") or torch.get_default_device()
        between: Tensor = _torch_linspace(start, end, steps, dtype=dtype, **choices)
        return between
    # Whole numbers begin and end at whole numbers, and steps between them are taken in double precision.
    start, end = (each.trunc().double() if isinstance(each, Tensor) else int(each) for each in (start, end))
    step, number = (end - start) / (steps - 1), torch.arange(steps, dtype=torch.float64)
    return torch.where(number < steps // 2, start + step * number, end - step * (steps - 1 - number)).to(dtype)


def histc(source: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if not min < max:
        # The range is that of the elements then, which eager checks for infinities, or an error.
        return NotImplemented  # type: ignore[no-any-return]
    flat = source.reshape(-1)
    # In this order eager rounds; an element at the upper end belongs to the last bin.
    places = ((flat - min) * bins / (max - min)).to(torch.int64).clamp(0, bins - 1)
    is_inside = (flat >= min) & (flat <= max)
    return source.new_zeros(bins).index_add(0, torch.where(is_inside, places, 0), is_inside.to(source.dtype))


def batch_norm_with_update(
    source: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    # In the type of the statistics: torch's own rounds those that the gradient needs to that of the input.
    output, mean, rstd, *updated = _aten._native_batch_norm_legit_functional(
        source.to(running_mean.dtype), weight, bias, running_mean, running_var, True, momentum, eps
    )
    return output.to(source.dtype), mean, rstd, source.new_empty(0, dtype=torch.uint8), *updated


def batch_norm_backward(
    gradient: Tensor, source: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_var: Tensor | None, update: bool, eps: float, output_mask: Sequence[bool],
    reserve: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    wide = source.dtype if save_mean is None else save_mean.dtype
    to_source, *others = _aten.native_batch_norm_backward(
        gradient.to(wide),
        source.to(wide),
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )
    return None if to_source is None else to_source.to(source.dtype), *others


def view_copy(source: Tensor, size: Sequence[int]) -> Tensor:
    return source.reshape(size).clone()


OWN_DECOMPOSITIONS: DecompositionTable = {
    _aten._batch_norm_with_update_functional.default: batch_norm_with_update,
    _aten._cdist_backward.default: cdist_backward,
    _aten._pdist_backward.default: pdist_backward,
    _aten._trilinear.default: trilinear,
    _aten.addbmm.default: addbmm,
    _aten.batch_norm_backward.default: batch_norm_backward,
    _aten.frac.default: frac,
    _aten.grid_sampler_2d_backward.default: grid_sampler_2d_backward,
    _aten.histc.default: histc,
    _aten.linspace.default: linspace,
    _aten.linspace.Scalar_Tensor: linspace,
    _aten.linspace.Tensor_Scalar: linspace,
    _aten.linspace.Tensor_Tensor: linspace,
    _aten.mkldnn_rnn_layer.default: mkldnn_rnn_layer,
    _aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    _aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    _aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    _aten.view_copy.default: view_copy,
}
