"""``tensor.data = other``: an assignment of which no operator tells, as one that functionalization sees.

Before: ``x.data = x * 2``
After:  ``x.set_(x * 2)``, unseen by autograd
"""

from typing import Any

import torch

from precast.errors import CaptureError

_SETTER = torch.Tensor.data.__set__  # type: ignore[attr-defined]


_GETTER = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def is_data_access(func: Any) -> bool:
    return bool(func == _GETTER)


def is_data_assignment(func: Any) -> bool:
    return bool(func == _SETTER)


def assign_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.dtype != value.dtype:
        raise CaptureError(
            f"The program assigns data of type {value.dtype} to a tensor of type {tensor.dtype}.",
            why="a tensor keeps its type in a program that is compiled",
            fix="Make a new tensor: `tensor = other.detach()`.",
        )
    with torch.no_grad():
        tensor.set_(value)  # type: ignore[call-overload]
