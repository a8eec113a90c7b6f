"""Elementwise operators that are taken apart lie in memory as the whole operator's result would.

Before::

    logaddexp(x, y)      x and y lie differently: eager looks at both, and its parts each at their own operands

After::

    parts.permute(…).contiguous().permute(…)

"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from torch import Tensor

from precast.ops.elementwise_strides import eager_strides


def lying_like_eager(rule: Callable[..., object]) -> Callable[..., object]:
    """The rule, with its result laid out as eager does."""

    @wraps(rule)
    def rule_and_layout(*args: object, **kwargs: object) -> object:
        result = rule(*args, **kwargs)
        strides = eager_strides(result, args) if isinstance(result, Tensor) else None
        if not isinstance(result, Tensor) or strides is None:
            return result
        order = sorted(range(result.ndim), key=strides.__getitem__, reverse=True)
        return result.permute(order).contiguous().permute([order.index(dim) for dim in range(result.ndim)])

    return rule_and_layout
