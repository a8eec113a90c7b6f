"""Resizing a tensor to its own sizes: nothing in eager, however it lies; torch's functionalization lays it out anew."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_RESIZES = (torch.Tensor.resize_, torch.Tensor.resize_as_)


def is_idle_resize(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes nothing; one that asks for a layout, or that eager refuses, may."""
    if func not in _RESIZES or kwargs or args[0].requires_grad:
        return False
    tensor, *sizes = args
    if func is torch.Tensor.resize_as_:
        sizes = list(sizes[0].shape)
    elif len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = list(sizes[0])
    return list(tensor.shape) == sizes
