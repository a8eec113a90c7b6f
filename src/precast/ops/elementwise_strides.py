"""How eager lays out the result of an elementwise operator: by looking at all operands at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides


def eager_strides(result: Tensor, operands: Sequence[object]) -> tuple[int, ...] | None:
    """The strides that eager gives the result, if they are not those it has; sizes are known."""
    tensors = [each for each in operands if isinstance(each, Tensor)]
    if any(each.layout is not torch.strided or each._has_symbolic_sizes_strides for each in (result, *tensors)):
        return None
    whole = [each for each in tensors if each.ndim]
    if all((each.shape, each.stride()) == (result.shape, result.stride()) for each in whole):
        return None
    strides: tuple[int, ...] = compute_elementwise_output_strides(*(each.expand(result.shape) for each in whole))
    steps = zip(result.shape, result.stride(), strides, strict=True)
    return None if all(size == 1 or mine == wanted for size, mine, wanted in steps) else strides
