"""Random numbers drawn into tensors that do not lie row by row, each at the place where eager puts it.

Before: ``x.t().bernoulli_(0.3)``, ``x[:, ::2].normal_()``
After:  ``x.t().copy_(bernoulli(x, 0.3).t())``: drawn in the order of memory, and then put there

Functional forms of these operators draw into memory of their own, without gaps, and go through it row by row.

``x.random_(2, 9)``, whatever ``x`` is like, becomes ``x.copy_(randint_like(x, 2, 9))``, which draws the same: its
functional form is ``aten.random.from``, whose name no Python code can spell.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from precast.ops.cost import size_hint

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
# Above this size eager draws normal numbers by sixteens, if they are to lie side by side.
_FEW = 16


def rows_of_eager(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments, with one that eager reads row by row laid out so: the functional form goes by its strides."""
    if func is _aten.rrelu_with_noise.default and not args[0].is_contiguous():
        return (args[0].contiguous(), *args[1:])
    return args


def draw_as_eager(func: Any, target: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """How to draw what ``func`` writes into ``target``, if its functional form draws otherwise than eager does."""
    order = _order_in_memory(target)
    if func is _RANDOM_FROM:
        if order is None or target.device.type != "cpu" or not _has_gaps(target):
            return partial(_integers, target)
        return partial(_drawn_in_order, _integers, target, order)
    if func is _aten.bernoulli_.float:
        return None if order is None else partial(_drawn_in_order, _aten.bernoulli.p, target, order)
    if func not in _IN_ORDER and func is not _aten.normal_.default:
        return None
    if target.device.type != "cpu" or not _has_gaps(target):
        return None
    if func is _aten.normal_.default:
        many = target.numel() >= _FEW
        return partial(_normals_one_by_one, target, order or [*range(target.ndim)]) if many else None
    return None if order is None else partial(_drawn_in_order, _IN_ORDER[func], target, order)


def _has_gaps(tensor: torch.Tensor) -> bool:
    length = 1
    for stride, size in sorted(zip(map(size_hint, tensor.stride()), map(size_hint, tensor.shape), strict=True)):
        if size > 1:
            if stride != length:
                return True
            length *= size
    return False


def _order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions, that of the largest steps first; None if they are in order already."""
    strides = [size_hint(stride) for stride in tensor.stride()]
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim))
    return None if order == list(range(tensor.ndim)) else order


def _integers(
    tensor: torch.Tensor, low: int, high: int | None, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Integers from ``low`` to below ``high``, or up to the last that the type counts to without gaps."""
    if generator is not None or (high is None and tensor.dtype is torch.int64):
        # A bound above the last one would be no such integer.
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
    """Numbers for a tensor, the first draw for the first place in memory."""
    drawn: torch.Tensor = draw(tensor.permute(order), *args, **kwargs)
    return _put_back(drawn, order)


def _normals_one_by_one(tensor: torch.Tensor, order: list[int], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Normal numbers for a tensor with gaps, drawn as eager does it there: here into columns, which have gaps, too."""
    count = tensor.numel()
    columns = tensor.new_empty(2, count // 2).t()
    drawn = _aten.normal_functional.default(columns, *args, **kwargs).t().reshape(-1)
    if count % 2:
        last = _aten.normal_functional.default(tensor.new_empty(1), *args, **kwargs)
        drawn = torch.cat([drawn, last])
    return _put_back(drawn.view([tensor.shape[dim] for dim in order]), order)


def _put_back(drawn: torch.Tensor, order: list[int]) -> torch.Tensor:
    return drawn.permute([order.index(dim) for dim in range(len(order))])
