"""Masks as in eager: of bytes, too, and refused where their sizes are not those of what they choose from.

Before: ``x[bytes]`` and ``where(bytes, x, y)`` are refused by torch's rules for fake tensors, and
        ``x[mask] = y`` is traced whatever the size of the mask is.
After:  bytes choose as bools do, and a mask of another size raises what eager raises.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
_CHOICES = {_aten.index.Tensor, _aten._unsafe_index.Tensor}
_WRITES = {
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
}
_MASK_TYPES = (torch.bool, torch.uint8)


def with_masks_of_eager(func: Any, args: Sequence[Any], mode: FakeTensorMode) -> Sequence[Any]:
    """The arguments that torch is to compute the result's sizes from; an error for masks that eager refuses."""
    if func is _aten.where.self and args[0].dtype is torch.uint8:
        return _as_bools(args[0], mode), *args[1:]
    if func in _WRITES:
        _check_sizes(args[0], args[1])
    if func in _CHOICES and any(_is_mask(index) for index in args[1]):
        _check_sizes(args[0], args[1])
        return args[0], [_as_bools(index, mode) if _is_mask(index) else index for index in args[1]], *args[2:]
    return args


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in _MASK_TYPES


def _as_bools(mask: Tensor, mode: FakeTensorMode) -> Tensor:
    if mask.dtype is torch.bool:
        return mask
    with mode:
        return torch.empty_strided(mask.shape, mask.stride(), dtype=torch.bool, device=mask.device)


def _check_sizes(source: Tensor, indices: Sequence[Any]) -> None:
    dim = 0
    for index in indices:
        if not _is_mask(index):
            dim += 1
            continue
        if dim + index.ndim > source.ndim:
            raise IndexError(f"too many indices for tensor of dimension {source.ndim}")
        for step, size in enumerate(index.shape):
            torch._check_index(size == source.shape[dim + step], _told(index, step, source, dim))
        dim += index.ndim


def _told(mask: Tensor, step: int, source: Tensor, dim: int) -> Callable[[], str]:
    def text() -> str:
        sizes, sizes_of_source = (str(list(each.shape)) for each in (mask, source))
        return (
            f"The shape of the mask {sizes} at index {step} does not match the shape of the indexed tensor "
            f"{sizes_of_source} at index {dim + step}"
        )

    return text
