"""Tensor subclasses that wrap plain tensors (``__tensor_flatten__``), opened up and put together again."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass


def is_wrapper(value: Any) -> bool:
    """Whether ``value`` is a tensor subclass that is made of inner tensors."""
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)


def map_inner(wrapper: Any, function: Callable[[Any], Any]) -> Any:
    """The same wrapper around other inner tensors, with the same standing in autograd."""
    mapped = transform_subclass(wrapper, lambda _, inner: function(inner))
    torch._mirror_autograd_meta_to(wrapper, mapped)  # type: ignore[attr-defined]
    return mapped


def innermost(value: Any) -> list[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or those inside its wrappers, in order."""
    if not is_wrapper(value):
        return [value]
    names, _ = value.__tensor_flatten__()
    inner = [getattr(value, name) for name in names]
    return [plain for tensor in inner if isinstance(tensor, torch.Tensor) for plain in innermost(tensor)]
