"""Uses autograd's gradient formulas for real tensors, where it uses other ones for fake tensors.

Minimum, maximum and median of all elements: eager writes the gradient to the elements that were selected.

Before: ``mul(x == x.max(), gradient)``, which is NaN at all other elements if the gradient is infinite
After:  ``masked_fill(zeros, x == x.max(), gradient)``
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_multiply = torch.ops.aten.mul.Tensor
_WRITTEN_BY_MASK = ("MaxBackward", "MinBackward", "MedianBackward", "NanmedianBackward")


def with_gradients_of_eager(rules: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions that also replace autograd's multiplication by a mask, used for fake tensors, by a masked fill."""
    given = rules.get(_multiply)

    def multiply(first: Any, second: Any) -> Any:
        if _is_choice_of_backward(first, second):
            return second.new_zeros(first.shape).masked_fill(first, second)
        return NotImplemented if given is None else given(first, second)

    return {**rules, _multiply: multiply}


def _is_choice_of_backward(mask: Any, gradient: Any) -> bool:
    if not isinstance(mask, Tensor) or not isinstance(gradient, Tensor):
        return False
    # On other devices eager multiplies, too.
    if mask.dtype is not torch.bool or mask.device.type != "cpu" or gradient.ndim:
        return False
    running: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
    return running is not None and running.name().startswith(_WRITTEN_BY_MASK)
