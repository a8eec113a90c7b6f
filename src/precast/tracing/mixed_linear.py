"""``linear`` with a bias of another type, of an input that eager does not flatten: the bias is added in place.

Before: ``linear(f32[2, 3, 4] that is not contiguous, f32[5, 4], f64[5])`` is traced as ``f64[2, 3, 5]``.
After:  as ``f32[2, 3, 5]``. Torch does not write in place where tensors are fake.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def is_mixed_linear(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is such a call; what is wrong with others, torch says."""
    if func is not torch.nn.functional.linear or torch.is_autocast_enabled("cpu"):
        return False
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | dict(kwargs)
    source, bias = given.get("input"), given.get("bias")
    if not isinstance(source, Tensor) or not isinstance(bias, Tensor):
        return False
    # The bias last: what is looked at first is lifted first.
    is_flattened = source.ndim < 3 or source.is_contiguous()
    return not is_flattened and bias.dtype is not source.dtype and bias.ndim == 1


def mixed_linear(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What eager computes, in the type of the input."""
    return torch.matmul(input, weight.t()).add_(bias)
