"""Operators of well-known libraries whose gradients cannot be traced, and what is recorded in their place.

Before: out = transformers.grouped_mm_fallback(rows, experts, ends)     its backward decides in Python on ``ends``
After:  out = precast.grouped_rows(rows, experts, ends)                 computes the same, and so does its backward
"""

from collections.abc import Callable

import torch
from torch._ops import OpOverload, OpOverloadPacket

from precast.ops.grouped_products import grouped_rows


def _experts(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = grouped_rows(input, weight, offs)
    return result


# Their arguments may be given by name: the names are the libraries'.
_REPLACED: dict[str, Callable[..., torch.Tensor]] = {"transformers::grouped_mm_fallback": _experts}


def replacement_of(function: object) -> Callable[..., torch.Tensor] | None:
    """What takes the same arguments and computes the same, but can be differentiated while tracing."""
    if isinstance(function, OpOverload):
        return _REPLACED.get(function.name().partition(".")[0])
    if isinstance(function, OpOverloadPacket):
        return _REPLACED.get(function._qualified_op_name)
    return None
