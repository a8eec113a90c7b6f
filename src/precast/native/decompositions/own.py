"""Decompositions of our own, for operators that torch does not decompose, or decomposes less precisely.

Most are gradients, which fuse into a loop or two. Each function has its operator's name, arguments and meaning.

Operators that raise for invalid values, decomposed into a check and a computation.

Before: ``nll_loss_forward(x, target)``
After:  ``target_1 = checked(target, target < 0 | target >= 3); gather(x, target_1); …``

Foreach operators, which optimizers use, as one operator for each tensor.

Before: ``_foreach_add([p, q], [m, n], alpha=2)``
After: ``[add(p, m, alpha=2), add(q, n, alpha=2)]``

Recurrent layers as a sequence of native steps.

Before: ``mkldnn_rnn_layer(x, …)``: an eager fallback, which packs its weights in every call
After:  one GEMM for the inputs of all steps; a GEMM and a kernel for each step, whose weights are packed once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

from precast._torch_compat import aten_operators
from precast.native.decompositions.grid_sampling import grid_sampler_2d, grid_sampler_2d_backward
from precast.ops.decompositions import DecompositionTable
from precast.ops.own_operators import checked

_LSTM = 2
_NONE, _MEAN = 0, 1
# Each step is traced and lowered separately, at about 20 ms; with many steps, torch's repacking hardly matters.
_MOST_STEPS = 64


def mkldnn_rnn_layer(
    source: Tensor, input_weight: Tensor, hidden_weight: Tensor, input_bias: Tensor, hidden_bias: Tensor,
    hidden: Tensor, cell: Tensor, reverse: bool, batch_sizes: Sequence[int], mode: int, hidden_size: int,
    num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> object:  # fmt: skip
    """One layer of an LSTM in one direction; like eager, it ignores the number of layers and the batch layout.

    In grad mode it is not decomposed, since its backward needs its workspace.
    """
    is_plain = mode == _LSTM and not batch_sizes and source.dtype == torch.float32
    if torch.is_grad_enabled() or not is_plain or not _has_few_steps(source):
        return NotImplemented
    steps, batch, features = source.shape
    inputs = source.reshape(steps * batch, features) @ input_weight.t()
    if has_biases:
        inputs = inputs + (input_bias + hidden_bias)
    inputs = inputs.view(steps, batch, 4 * hidden_size)
    h, c = hidden.reshape(batch, hidden_size), cell.reshape(batch, hidden_size)
    results = []
    for step in reversed(range(steps)) if reverse else range(steps):
        h, c = _lstm_step(inputs[step] + h @ hidden_weight.t(), c)
        results.append(h)
    results = results[::-1] if reverse else results
    workspace = source.new_empty(0, dtype=torch.uint8)
    return torch.stack(results), h.reshape(hidden.shape), c.reshape(cell.shape), workspace


def _has_few_steps(source: Tensor) -> bool:
    return isinstance(source.shape[0], int) and 0 < source.shape[0] <= _MOST_STEPS


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, candidate, leave = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


_aten = torch.ops.aten
_MEAN = 1
_COARSE_SIXTH = torch.tensor(1 / 6, dtype=torch.float32).item()
_torch_linspace = decomposition_table[_aten.linspace.default]


def addbmm(source: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not source.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    product = torch.bmm(batch1, batch2).sum(0, dtype=source.dtype)
    product = product if alpha == 1 else product * alpha
    # A factor of 0 must not propagate NaN or infinity.
    return product if beta == 0 else product + (source if beta == 1 else source * beta)


def frac(source: Tensor) -> Tensor:
    # Torch 2.11 decomposes it differently, which changes the sign of a zero.
    return source - source.trunc()


def hardsigmoid_backward(gradient: Tensor, source: Tensor) -> Tensor:
    if source.dtype is not torch.float64:
        slope: Tensor = decomposition_table[_aten.hardsigmoid_backward.default](gradient, source)
        return slope
    # In eager, a sixth is rounded to float32 whatever the dtype.
    return torch.where((source > -3) & (source < 3), gradient * _COARSE_SIXTH, 0.0)


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
    """The derivative of a distance with respect to a coordinate's difference; 0 where two points coincide."""
    if p == 1:
        return difference.sign()
    if p == float("inf"):
        return difference.sign() * (1 - (difference.abs() - distance).abs().ceil().clamp(max=1))
    safe = torch.where(distance != 0, distance, 1)
    if p == 2:
        return difference / safe
    return difference.sign() * (difference.abs() / safe).pow(p - 1)


def _pulled(gradient: Tensor, difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """What each pair of points adds to a gradient: 0 where they coincide, however large the gradient."""
    pulled = gradient * _distance_slope(difference, distance, p)
    if p in (1, float("inf")):
        return pulled
    is_apart = distance != 0
    return torch.where(is_apart & (difference != 0) if p < 1 else is_apart, pulled, 0)


def cdist_backward(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    if p == 0:
        return torch.zeros_like(x1)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _pulled(gradient.unsqueeze(-1), difference, cdist.unsqueeze(-1), p).sum(-2).sum_to_size(x1.shape)


def pdist_backward(gradient: Tensor, source: Tensor, p: float, pdist: Tensor) -> Tensor:
    count = source.shape[0]
    if pdist.shape[0] == 0 or p == 0:
        return torch.zeros_like(source)
    number = torch.arange(count)
    low, high = torch.minimum(number[:, None], number), torch.maximum(number[:, None], number)
    # Pairs are numbered row by row; a point and itself are no pair.
    pair = (low * count - low * (low + 1) // 2 + high - low - 1).clamp(0, pdist.shape[0] - 1)
    difference = source[:, None] - source[None]
    pulled = _pulled(gradient[pair].unsqueeze(-1), difference, pdist[pair].unsqueeze(-1), p)
    return torch.where((low < high).unsqueeze(-1), pulled, 0).sum(1)


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


def multilabel_margin_loss_forward(source: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Torch's decomposition counts class 0 again for each target after the last."""
    rows, wanted = (each.reshape(1, -1) if source.ndim < 2 else each for each in (source, target))
    is_wanted = (wanted == -1).to(torch.int64).cumsum(1) == 0
    places = torch.where(is_wanted, wanted, 0)
    known = torch.zeros_like(rows).scatter_add(1, places, is_wanted.to(rows.dtype)) > 0
    distance = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)
    is_close = is_wanted.unsqueeze(2) & ~known.unsqueeze(1) & (distance > 0)
    losses = torch.where(is_close, distance, 0).sum((1, 2)) / rows.shape[1]
    loss = losses.mean() if reduction == _MEAN else losses.reshape(source.shape[:-1])
    return loss if reduction in (_NONE, _MEAN) else losses.sum(), known.to(source.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(
    gradient: Tensor, source: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    rows, wanted, known = (each.reshape(1, -1) if source.ndim < 2 else each for each in (source, target, is_target))
    # Targets end at the first negative one.
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
    # Torch's own uses the sign of large differences, which is 0 for NaN.
    is_large, sign = difference.abs() >= beta, torch.where(difference <= -beta, -1, 1)
    return torch.where(is_large, scaled * sign, scaled * difference / (beta or 1))


def linspace(
    start: float | Tensor, end: float | Tensor, steps: int, *, dtype: torch.dtype | None = None, **choices: object
) -> Tensor:
    if dtype is None or dtype.is_floating_point or dtype.is_complex or steps < 2:
        # With tensor arguments, torch's own needs an explicit device.
        choices["device"] = choices.get("device") or torch.get_default_device()
        between: Tensor = _torch_linspace(start, end, steps, dtype=dtype, **choices)
        return between
    # Integers start and end at integers, and the steps between them are computed in double precision.
    start, end = (each.trunc().double() if isinstance(each, Tensor) else int(each) for each in (start, end))
    step, number = (end - start) / (steps - 1), torch.arange(steps, dtype=torch.float64)
    return torch.where(number < steps // 2, start + step * number, end - step * (steps - 1 - number)).to(dtype)


def histc(source: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if min > max:
        return NotImplemented  # type: ignore[no-any-return]
    flat = source.reshape(-1)
    low, high = (min, max) if min < max else _range_of_elements(flat, min)
    # Eager rounds in this order; an element at the upper end belongs to the last bin.
    places = ((flat - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)
    is_inside = (flat >= low) & (flat <= high)
    return source.new_zeros(bins).index_add(0, torch.where(is_inside, places, 0), is_inside.to(source.dtype))


def _range_of_elements(flat: Tensor, only: float) -> tuple[Tensor, Tensor]:
    """The range of a histogram whose given one is empty: that of its elements, or around their only value."""
    if statically_known_true(flat.numel() == 0):
        return flat.new_full((), only - 1), flat.new_full((), only + 1)
    low, high = flat.amin(), flat.amax()
    low = checked(low, ~(low.isfinite() & high.isfinite()), "value", "histc: the range of the elements is not finite")
    is_one = low == high
    return torch.where(is_one, low - 1, low), torch.where(is_one, high + 1, high)


def batch_norm_with_update(
    source: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    # In the type of the statistics: torch's own rounds the saved ones to that of the input.
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
    _aten.grid_sampler_2d.default: grid_sampler_2d,
    _aten.grid_sampler_2d_backward.default: grid_sampler_2d_backward,
    _aten._is_all_true.default: torch.all,
    _aten._is_any_true.default: torch.any,
    _aten.hardsigmoid_backward.default: hardsigmoid_backward,
    _aten.histc.default: histc,
    _aten.linspace.default: linspace,
    _aten.linspace.Scalar_Tensor: linspace,
    _aten.linspace.Tensor_Scalar: linspace,
    _aten.linspace.Tensor_Tensor: linspace,
    _aten.mkldnn_rnn_layer.default: mkldnn_rnn_layer,
    _aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    _aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
    _aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    _aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    _aten.view_copy.default: view_copy,
}


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


def nll_loss_backward(
    gradient: Tensor, source: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int,
    total_weight: Tensor,
) -> Tensor:  # fmt: skip
    """Written at the target, as in eager: torch's decomposition multiplies zeros by what may be infinite."""
    classes = min(1, source.ndim - 1)
    # For a source without a batch, eager reads the first target alone.
    target = target.reshape(-1)[:1] if source.ndim == 1 else target.unsqueeze(classes)
    is_for_each = reduction == _NONE and source.ndim > 1
    gradient = gradient.unsqueeze(classes) if is_for_each else gradient.reshape([1] * source.ndim)
    if reduction == _MEAN:
        gradient = gradient / total_weight
    is_taken = target != ignore_index
    place = torch.where(is_taken, target, 0)
    if weight is not None:
        gradient = gradient * weight[place]
    return torch.zeros_like(source).scatter(classes, place, torch.where(is_taken, -gradient, 0))


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
    _aten.nll_loss_backward.default: nll_loss_backward,
    _aten.nll_loss2d_backward.default: nll_loss_backward,
    _aten.nll_loss_forward.default: _nll_loss(_aten.nll_loss_forward.default),
    _aten.nll_loss2d_forward.default: _nll_loss(_aten.nll_loss2d_forward.default),
}


_ALIKE = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "cos", "cosh", "div", "erf",
    "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "max", "mm", "mul",
    "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh",
    "trunc",
)  # fmt: skip


def _addcmul(source: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcmul(source, tensor1, tensor2, value=value)


def _addcdiv(source: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcdiv(source, tensor1, tensor2, value=value)


def _maximum(source: Tensor, other: Tensor | float) -> Tensor:
    return torch.maximum(source, other) if isinstance(other, Tensor) else torch.clamp_min(source, other)


def _minimum(source: Tensor, other: Tensor | float) -> Tensor:
    return torch.minimum(source, other) if isinstance(other, Tensor) else torch.clamp_max(source, other)


def _norm(source: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(source, ord, dtype=dtype)
    return result


_MEMBERS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _ALIKE},
    "addcdiv": _addcdiv, "addcmul": _addcmul, "copy": _aten.copy.default, "maximum": _maximum, "minimum": _minimum,
    "norm": _norm, "zero": torch.zeros_like,
}  # fmt: skip
# Their factors are the elements of one tensor, which stays whole.
_LEFT_WHOLE = (_aten._foreach_addcdiv.Tensor, _aten._foreach_addcmul.Tensor)


def _for_each(member: Callable[..., Tensor], *arguments: object, **options: object) -> list[Tensor]:
    count = next(len(each) for each in arguments if isinstance(each, list | tuple))

    def of(number: int) -> list[object]:
        return [each[number] if isinstance(each, list | tuple) else each for each in arguments]

    return [member(*of(number), **options) for number in range(count)]


def foreach_decompositions() -> DecompositionTable:
    """The rules for all functional overloads."""
    packets = aten_operators({f"_foreach_{name}": member for name, member in _MEMBERS.items()})
    overloads = [(getattr(packet, name), member) for packet, member in packets for name in packet.overloads()]
    return {
        overload: partial(_for_each, member)
        for overload, member in overloads
        if not overload._schema.is_mutable and overload not in _LEFT_WHOLE
    }
