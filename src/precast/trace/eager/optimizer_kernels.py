"""Decomposes torch's fused optimizer kernels into operators that can be traced, and fused again by the compiler.

Before: ``_fused_sgd_([p, q], [dp, dq], [], lr=0.1, …)``
After:  ``p.copy_(p - 0.1 * dp); q.copy_(q - 0.1 * dq)``
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Number = float | Tensor


class _Step:
    """One optimizer step over many tensors; values are written back unless ``found_inf`` is set."""

    def __init__(self, grad_scale: Tensor | None, found_inf: Tensor | None, *, maximize: bool) -> None:
        self._scale = grad_scale
        self._skips = None if found_inf is None else found_inf == 1
        self._maximize = maximize

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient that the optimizer uses; unscaled gradients are written back."""
        if self._scale is not None:
            self.write(gradient, gradient / self._scale)
        return -gradient if self._maximize else gradient

    def write(self, tensor: Tensor, value: Tensor) -> None:
        tensor.copy_(value if self._skips is None else torch.where(self._skips, tensor, value))


def _number(value: Number) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffer_list: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    step = _Step(grad_scale, found_inf, maximize=maximize)
    rate = _number(lr)
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        change = step.gradient(grad)
        if weight_decay != 0:
            change = change + param * weight_decay
        if momentum != 0:
            buffer = momentum_buffer_list[number]
            kept = change if is_first_step else buffer * momentum + change * (1 - dampening)
            step.write(buffer, kept)
            change = change + kept * momentum if nesterov else kept
        step.write(param, param - change * rate)


def _adam(*lists: Sequence[Tensor], **options: Any) -> None:
    _adam_step(*lists, **options, is_decoupled=False)


def _adamw(*lists: Sequence[Tensor], **options: Any) -> None:
    _adam_step(*lists, **options, is_decoupled=True)


def _adam_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Number,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    is_decoupled: bool,
) -> None:
    step = _Step(grad_scale, found_inf, maximize=maximize)
    rate = _number(lr)
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        count = state_steps[number].item()
        change, value = step.gradient(grad), param
        if weight_decay != 0 and is_decoupled:
            value = value * (1 - rate * weight_decay)
        elif weight_decay != 0:
            change = change + value * weight_decay
        mean = exp_avgs[number].lerp(change, 1 - beta1)
        square = exp_avg_sqs[number] * beta2 + change * change * (1 - beta2)
        step.write(exp_avgs[number], mean)
        step.write(exp_avg_sqs[number], square)
        if amsgrad:
            square = torch.maximum(max_exp_avg_sqs[number], square)
            step.write(max_exp_avg_sqs[number], square)
        spread = square.sqrt() / (1 - beta2**count) ** 0.5 + eps
        step.write(param, value - mean / spread * (rate / (1 - beta1**count)))


def _adagrad(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    step = _Step(grad_scale, found_inf, maximize=maximize)
    rate = _number(lr)
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        change = step.gradient(grad)
        if weight_decay != 0:
            change = change + param * weight_decay
        total = state_sums[number] + change * change
        step.write(state_sums[number], total)
        decayed = rate / (1 + (state_steps[number].item() - 1) * lr_decay)
        step.write(param, param - change / (total.sqrt() + eps) * decayed)


_KERNELS: dict[str, Callable[..., None]] = {
    "_fused_sgd_": _sgd, "_fused_adam_": _adam, "_fused_adamw_": _adamw, "_fused_adagrad_": _adagrad,
}  # fmt: skip
_BY_FUNCTION = {getattr(torch, name): kernel for name, kernel in _KERNELS.items() if hasattr(torch, name)}


def fused_step(function: object) -> Callable[..., None] | None:
    """The decomposition of a fused kernel, with the same arguments; None for any other function."""
    name = getattr(function, "__name__", "")
    return _BY_FUNCTION.get(function) if name.startswith("_fused_") else None
