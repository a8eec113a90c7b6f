"""Random numbers drawn in place into tensors that are not contiguous, in the same order as in eager.

Before: ``x.t().bernoulli_(0.3)``, ``x[:, ::2].normal_()``
After:  ``x.t().copy_(bernoulli(x, 0.3).t())``: drawn in memory order, and then copied

The functional forms of these operators draw into dense memory of their own, in row-major order.

``x.random_(2, 9)``, for any layout of ``x``, becomes ``x.copy_(randint_like(x, 2, 9))``, which draws the same numbers:
its functional form is ``aten.random.from``, whose name is a Python keyword.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from precast.ops.cost import size_hint
from precast.trace.functionalize.shared_memory import has_gaps

_aten = torch.ops.aten
_IN_ORDER: dict[OpOverload, OpOverload] = {
    _aten.cauchy_.default: _aten.cauchy.default,
    _aten.exponential_.default: _aten.exponential.default,
    _aten.geometric_.default: _aten.geometric.default,
    _aten.log_normal_.default: _aten.log_normal.default,
    _aten.random_.default: _aten.random.default,
    _aten.random_.to: _aten.random.to,
    _aten.uniform_.default: _aten.uniform.default,
}
_RANDOM_FROM = getattr(_aten.random_, "from")
# From this size on, eager draws normal numbers in blocks of 16, if the tensor is dense.
_FEW = 16


def rows_of_eager(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments; one that eager reads in row-major order is made contiguous, since the functional form is not."""
    if func is _aten.rrelu_with_noise.default and not args[0].is_contiguous():
        return (args[0].contiguous(), *args[1:])
    return args


def draw_as_eager(func: Any, target: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """How to draw what ``func`` writes into ``target``, if its functional form draws differently from eager."""
    order = _order_in_memory(target)
    if func is _RANDOM_FROM:
        if order is None or target.device.type != "cpu" or not has_gaps(target):
            return partial(_integers, target)
        return partial(_drawn_in_order, _integers, target, order)
    if func is _aten.bernoulli_.float:
        return None if order is None else partial(_drawn_in_order, _aten.bernoulli.p, target, order)
    if func not in _IN_ORDER and func is not _aten.normal_.default:
        return None
    if target.device.type != "cpu" or not has_gaps(target):
        return None
    if func is _aten.normal_.default:
        many = target.numel() >= _FEW
        return partial(_normals_one_by_one, target, order or [*range(target.ndim)]) if many else None
    return None if order is None else partial(_drawn_in_order, _IN_ORDER[func], target, order)


def _order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions by decreasing stride; None if they are in that order already."""
    strides = [size_hint(stride) for stride in tensor.stride()]
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim))
    return None if order == list(range(tensor.ndim)) else order


def _integers(
    tensor: torch.Tensor, low: int, high: int | None, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Integers from ``low`` to below ``high``, or up to the last one up to which the dtype represents all exactly."""
    if generator is not None or (high is None and tensor.dtype is torch.int64):
        # The exclusive bound would overflow int64.
        drawn: torch.Tensor = getattr(_aten.random, "from")(tensor, low, high, generator=generator)
        return drawn
    if high is None:
        high = 1 + (_last_exact(tensor.dtype) if tensor.is_floating_point() else _greatest(tensor.dtype))
    return torch.randint_like(tensor, low, high)


def _last_exact(dtype: torch.dtype) -> int:
    return int(2 / torch.finfo(dtype).eps)


def _greatest(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def _drawn_in_order(
    draw: Callable[..., torch.Tensor], tensor: torch.Tensor, order: list[int], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Draw numbers for a tensor in its memory order."""
    drawn: torch.Tensor = draw(tensor.permute(order), *args, **kwargs)
    return _put_back(drawn, order)


def _normals_one_by_one(tensor: torch.Tensor, order: list[int], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Draw normal numbers for a tensor with gaps one by one, as eager does: into columns, which have gaps, too."""
    count = tensor.numel()
    columns = tensor.new_empty(2, count // 2).t()
    drawn = _aten.normal_functional.default(columns, *args, **kwargs).t().reshape(-1)
    if count % 2:
        last = _aten.normal_functional.default(tensor.new_empty(1), *args, **kwargs)
        drawn = torch.cat([drawn, last])
    return _put_back(drawn.view([tensor.shape[dim] for dim in order]), order)


def _put_back(drawn: torch.Tensor, order: list[int]) -> torch.Tensor:
    return drawn.permute([order.index(dim) for dim in range(len(order))])
