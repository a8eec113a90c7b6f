"""Operators on tensors without elements that eager takes and torch's rules for fake tensors do not.

Before: the gradients of ``group_norm`` of ``f32[2, 4, 0]`` divide by zero while they are traced.
After:  they are tensors of the sizes that eager gives.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten


def empty_answer(func: Any, args: Sequence[Any], mode: FakeTensorMode) -> Any:
    """What such an operator gives; None if it is another, or has something to compute."""
    if func is _aten.native_group_norm_backward.default and any(size == 0 for size in args[5:8]):
        with mode:
            return _group_norm_gradients(args[1], args[6], args[9])
    if func is _aten.convolution.default and args[6] and not args[0]._has_symbolic_sizes_strides:
        sizes = _transposed_sizes(*args)
        # Of pixels that are not there, eager makes nothing: it refuses them.
        if min(sizes[2:]) == 0 < min(args[0].shape[2:]) and args[0].shape[1] == args[1].shape[0]:
            with mode:
                return args[0].new_empty(sizes)
    return None


def _group_norm_gradients(source: Tensor, channels: int, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    shapes = (source.shape, (channels,), (channels,))
    return tuple(source.new_empty(shape) if each else None for shape, each in zip(shapes, wanted, strict=True))


def _transposed_sizes(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> list[int]:
    """The sizes of the result of a transposed convolution; one number may stand for all dimensions."""

    def along(numbers: Sequence[int], dim: int) -> int:
        return numbers[dim] if len(numbers) > 1 else numbers[0]

    spatial = [
        (size - 1) * along(stride, dim)
        - 2 * along(padding, dim)
        + along(dilation, dim) * (weight.shape[dim + 2] - 1)
        + along(output_padding, dim)
        + 1
        for dim, size in enumerate(source.shape[2:])
    ]
    return [source.shape[0], weight.shape[1] * groups, *spatial]
