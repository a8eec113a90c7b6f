"""Lays out results of fake tensors as eager does, where torch's fake tensors differ.

Before: ``batch_norm`` of ``f32[2, 3, 4]`` with strides ``(12, 1, 3)`` is traced with those strides.
After:  with ``(12, 4, 1)``, as eager computes it.

Strides of dimensions of size 1 matter as well: the layout of later results may depend on them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

from precast.ops.cost import size_hint
from precast.ops.decompositions import eager_strides, strides_of_ones

_aten = torch.ops.aten
_BATCH_NORMS = {
    _aten.native_batch_norm.default, _aten._native_batch_norm_legit.default, _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_no_training.default, _aten._native_batch_norm_legit_functional.default,
    _aten._batch_norm_with_update.default, _aten._batch_norm_with_update_functional.default,
    _aten._batch_norm_no_update.default,
}  # fmt: skip
_BATCH_NORM_GRADIENTS = {_aten.native_batch_norm_backward.default, _aten.batch_norm_backward.default}
# In eager, the layout of their results depends on all operands together; fake tensors consider them one by one.
_ELEMENTWISE = {
    _aten.copysign.Tensor, _aten.div.Tensor_mode, _aten.floor_divide.default, _aten.heaviside.default,
    _aten.ldexp.Tensor, _aten.logaddexp.default, _aten.logaddexp2.default, _aten.logical_and.default,
    _aten.logical_or.default, _aten.logical_xor.default, _aten.native_dropout_backward.default,
    _aten.special_xlog1py.default, _aten.xlogy.Tensor,
}  # fmt: skip
# Channels-last if the operand is, otherwise contiguous.
_SUGGESTED = {
    _aten.channel_shuffle.default, _aten.max_unpool2d.default,
    _aten.reflection_pad3d.default, _aten.replication_pad3d.default,
}  # fmt: skip
_ROW_BY_ROW = {
    _aten.normal.Tensor_Tensor, _aten.normal.Tensor_float, _aten.poisson.default, _aten.masked_fill.Scalar,
    _aten.masked_fill.Tensor, _aten.pow.Scalar, _aten.im2col.default,
}  # fmt: skip
_PAIRS_ROW_BY_ROW = {_aten.log_sigmoid_forward.default, _aten.rrelu_with_noise_functional.default}
_FLASH = _aten._scaled_dot_product_flash_attention_for_cpu.default
_SORTS = {_aten.sort.default, _aten.sort.stable}
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}


def with_layout_of_eager(func: Any, args: Sequence[Any], result: Any, mode: FakeTensorMode) -> Any:
    """The result of an operator on fake tensors, with the layout of eager's on the CPU."""
    if func in _BATCH_NORMS:
        return (_laid_out(result[0], _norm_strides(args[0]), mode), *result[1:])
    if func in _BATCH_NORM_GRADIENTS:
        return (_laid_out(result[0], _norm_strides(args[1]), mode), *result[1:])
    if func in _ELEMENTWISE and (strides := eager_strides(result, args)) is not None:
        with mode:
            return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    if func in _ROW_BY_ROW:
        return _laid_out(result, _contiguous_strides, mode)
    if func in _PAIRS_ROW_BY_ROW:
        return tuple(_laid_out(each, _contiguous_strides, mode) for each in result)
    if func in _SUGGESTED or (func is _aten.roll.default and _has_two_parts(*args)):
        return _laid_out(result, _suggested_strides(args[0]), mode)
    if func in _SORTS and _is_known(args[0]) and _is_dense(args[0]):
        return tuple(_laid_out(each, lambda _: args[0].stride(), mode) for each in result)
    if func is _aten.index.Tensor and _is_known(args[0]) and _is_known(result) and result.numel():
        return _laid_out(result, lambda _: _indexed_strides(args[0], args[1], result), mode)
    if func is _FLASH and _is_known(args[0]) and _is_dense(args[0]):
        return (_laid_out(result[0], lambda _: args[0].stride(), mode), *result[1:])
    if func is _aten.convolution.default and _runs_by_groups(args):
        return _laid_out(result, lambda _: _strides_by_groups(*args), mode)
    if func in _VIEWS and args[0].ndim and 1 in (sizes := list(map(size_hint, result.shape))) and 0 not in sizes:
        return _viewed(args[0], result, mode)
    is_one = isinstance(func, OpOverload) and isinstance(result, torch.Tensor)
    if is_one and (ones := strides_of_ones(func, result, args)) is not None:
        with mode:
            return torch.empty_strided(result.shape, ones, dtype=result.dtype, device=result.device)
    return result


Strides = Sequence[int | torch.SymInt]


def _laid_out(
    result: torch.Tensor | None, strides_for: Callable[[torch.Tensor], Strides], mode: FakeTensorMode
) -> torch.Tensor | None:
    """The result with these strides, if it is on the CPU; None for a gradient that was not requested."""
    if result is None or result.device.type != "cpu":
        return result
    with mode:
        strides = strides_for(result)
        if result.stride() == tuple(strides):
            return result
        return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _contiguous_strides(result: torch.Tensor) -> Strides:
    return torch.empty_like(result, memory_format=torch.contiguous_format).stride()


def _suggested_strides(source: torch.Tensor) -> Callable[[torch.Tensor], Strides]:
    return lambda result: torch.empty_like(result, memory_format=suggest_memory_format(source)).stride()


def _runs_by_groups(arguments: Sequence[Any]) -> bool:
    """Whether eager runs a convolution group by group: its ``Slow…`` backends do."""
    source, weight, *_, groups = arguments
    if groups == 1 or not (_is_known(source) and _is_known(weight)) or 0 in source.shape:
        return False
    name: str = _backend_of(arguments).name
    return name.startswith("Slow")


def _backend_of(arguments: Sequence[Any]) -> Any:
    return torch._C._select_conv_backend(*arguments, None)


def _strides_by_groups(source: torch.Tensor, weight: torch.Tensor, bias: Any, *others: Any) -> Strides:
    stride, padding, dilation, is_transposed, output_padding, groups = others
    if source.ndim == 3:
        # A sequence is an image of one row.
        strides = _strides_by_groups(
            source.contiguous().unsqueeze(2), weight.unsqueeze(2), bias,
            [1, *stride], [0, *padding], [1, *dilation], is_transposed, [0, *output_padding], groups,
        )  # fmt: skip
        return [*strides[:2], strides[3]]
    chosen = torch._C._conv_determine_backend_memory_format(
        source, weight, _backend_of((source, weight, bias, *others))
    )
    whole = [each.contiguous(memory_format=chosen) for each in (source, weight)]
    parts = [
        [part.contiguous(memory_format=suggest_memory_format(each)) for part in each.chunk(groups, dim)]
        for each, dim in zip(whole, (1, 0), strict=True)
    ]
    made = [_aten.convolution.default(*pair, None, *others[:-1], 1) for pair in zip(*parts, strict=True)]
    return torch.cat(made, 1).stride()


def _has_two_parts(source: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> bool:
    """Whether eager rolls by concatenating two non-empty parts, which keeps their layout."""
    if len(shifts) != 1 or len(dims) != 1 or 0 in map(size_hint, source.shape):
        return False
    return size_hint(shifts[0]) % size_hint(source.shape[dims[0]]) != 0


def _norm_strides(source: torch.Tensor) -> Callable[[torch.Tensor], Strides]:
    """Dense strides in the input's memory format, or else in its suggested one."""

    def strides(result: torch.Tensor) -> Strides:
        if source.is_contiguous():
            return _contiguous_strides(result)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        wanted = formats.get(source.ndim)
        if wanted is None or not source.is_contiguous(memory_format=wanted):
            wanted = suggest_memory_format(source)
        return torch.empty_like(result, memory_format=wanted).stride()

    return strides


def _indexed_strides(source: torch.Tensor, indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> Strides:
    """Strides in the order of the dimensions that are not indexed; leading ones of size 1 do not count."""
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8, torch.int8) for index in indices):
        return result.stride()
    kept = [dim for dim in range(source.ndim) if dim not in indexed]
    is_one_run = indexed[-1] - indexed[0] + 1 == len(indexed)
    before = [dim for dim in kept if is_one_run and dim < indexed[0]]
    strides = [0 if source.shape[dim] == 1 else source.stride(dim) for dim in before]
    strides += [0] * (result.ndim - len(kept)) + [source.stride(dim) for dim in kept if dim not in before]
    found: Strides = compute_elementwise_output_strides(source.as_strided(result.shape, strides))
    return found


def _is_known(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in any order; sizes are static."""
    length = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != length:
                return False
            length *= size
    return True


def _view_strides(source: torch.Tensor, shape: Sequence[int | torch.SymInt]) -> list[int | torch.SymInt] | None:
    """The strides of a view with other sizes, computed as in torch: by blocks of memory from the innermost on.

    For symbolic sizes, the example decides where a block ends: memory order is guarded elsewhere.
    """
    strides: list[int | torch.SymInt] = [0] * len(shape)
    sizes, place = [size_hint(size) for size in shape], len(shape) - 1
    length, base = 1, source.stride(-1)
    for dim in reversed(range(source.ndim)):
        length *= size_hint(source.shape[dim])
        outer = dim - 1
        if dim and (size_hint(source.shape[outer]) == 1 or size_hint(source.stride(outer)) == length * size_hint(base)):
            continue
        covered = 1
        step: int | torch.SymInt = base
        while place >= 0 and (covered < length or sizes[place] == 1):
            strides[place] = step
            covered, step, place = covered * sizes[place], step * shape[place], place - 1
        if covered != length:
            return None
        length, base = 1, source.stride(outer) if dim else base
    return strides


def _viewed(source: torch.Tensor, result: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A view with other sizes, whose dimensions of size 1 have eager's strides."""
    strides = _view_strides(source, result.shape)
    ones = [dim for dim in range(result.ndim) if size_hint(result.shape[dim]) == 1]
    if strides is None or all(size_hint(strides[dim]) == size_hint(result.stride(dim)) for dim in ones):
        return result
    laid_out = [strides[dim] if dim in ones else result.stride(dim) for dim in range(result.ndim)]
    with mode:
        return result.as_strided(result.shape, laid_out, result.storage_offset())
