"""Operators on empty tensors that eager accepts, but torch's fake-tensor rules and decompositions do not.

Before: the gradients of ``group_norm`` of ``f32[2, 4, 0]`` divide by zero while they are traced.
After:  they are tensors with the sizes of eager's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from precast.ops.cost import size_hint

_aten = torch.ops.aten
_Backend = torch._C._ConvBackend  # type: ignore[attr-defined]
_REFUSING = (_Backend.SlowTranspose2d, _Backend.SlowTranspose3d)
_GRADIENTS_OF_MEANS = {
    _aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default,
}  # fmt: skip
_RESIZING = {
    _aten.upsample_nearest1d.default, _aten.upsample_nearest2d.default, _aten.upsample_nearest3d.default,
    _aten._upsample_nearest_exact1d.default, _aten._upsample_nearest_exact2d.default,
    _aten._upsample_nearest_exact3d.default,
}  # fmt: skip


def empty_answer(func: Any, args: Sequence[Any], mode: FakeTensorMode) -> Any:
    """The result of such an operator; None if it is another one, or not empty."""
    if func is _aten.native_group_norm_backward.default and any(size == 0 for size in args[5:8]):
        with mode:
            return _group_norm_gradients(args[1], args[6], args[9])
    if func in _GRADIENTS_OF_MEANS and any(size == 0 for size in map(size_hint, args[1].shape)):
        with mode:
            return torch.empty_like(args[1])
    if func in _RESIZING and size_hint(args[0].shape[0]) == 0:
        # Torch's rules use a number of elements as a bool, and raise a TypeError.
        with mode:
            return args[0].new_empty([*args[0].shape[:2], *args[1]])
    if func is _aten.convolution.default and args[6]:
        return _transposed_to_nothing(args, mode)
    return None


def _transposed_to_nothing(args: Sequence[Any], mode: FakeTensorMode) -> Tensor | None:
    """The empty result of a transposed convolution that is all padding; some of eager's backends refuse it."""
    source, weight = args[:2]
    sizes = _transposed_sizes(*args)
    # Eager refuses an input without pixels.
    if min(map(size_hint, sizes[2:])) != 0 or min(map(size_hint, source.shape[2:])) == 0:
        return None
    assert mode.shape_env is not None, "our fake modes have a shape environment"
    with mode, mode.shape_env.suppress_guards():
        backend = torch._C._select_conv_backend(*args, None)
        if backend in _REFUSING or source.shape[1] != weight.shape[0]:
            return None
        made: Tensor = source.new_empty([0 if size_hint(size) == 0 else size for size in sizes])
        return made


def whole_where_empty(rules: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions that keep an operator whole if they would divide by a number of elements of 0."""

    def guarded(rule: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(rule)
        def decomposed(*args: Any, **kwargs: Any) -> Any:
            try:
                return rule(*args, **kwargs)
            except ZeroDivisionError:
                return NotImplemented

        return decomposed

    return {op: guarded(rule) for op, rule in rules.items()}


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
