"""Operators that torchlib lacks, or that newer opsets say in one node."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core, nn

from precast.onnx.opsets import op, op20, op21
from precast.onnx.rules import rule

_END = 2**62
"""Beyond the last element, whatever the size."""


@rule("aten::__and__.Tensor", "aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::__and__.Scalar")
def bitwise_and(x: Any, y: Any) -> Any:
    return op.And(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseAnd(x, y)


@rule("aten::__or__.Tensor", "aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar", "aten::__or__.Scalar")
def bitwise_or(x: Any, y: Any) -> Any:
    return op.Or(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseOr(x, y)


@rule("aten::__xor__.Tensor", "aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar", "aten::__xor__.Scalar")
def bitwise_xor(x: Any, y: Any) -> Any:
    return op.Xor(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseXor(x, y)


@rule("aten::min.other")
def minimum_of_two(x: Any, y: Any) -> Any:
    return op.Min(x, y)


@rule("aten::max.other")
def maximum_of_two(x: Any, y: Any) -> Any:
    return op.Max(x, y)


@rule("aten::squeeze.dim", "aten::squeeze_copy.dim")
def squeeze_dim(x: Any, dim: int) -> Any:
    return squeeze_dims(x, [dim])


@rule("aten::squeeze.dims", "aten::squeeze_copy.dims")
def squeeze_dims(x: Any, dims: Sequence[int]) -> Any:
    ones = [dim for dim in dims if x.shape and x.shape[dim] == 1]
    return op.Squeeze(x, ones) if ones else op.Identity(x)


@rule("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Any, *, output_size: int | None = None) -> Any:
    return core.aten_repeat_interleave_Tensor(repeats)


@rule("aten::pad")
def pad(x: Any, pads: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """Torchlib's, but for the mode that onnxruntime has no kernel for."""
    if mode != "circular":
        return nn.aten_pad(x, pads, mode, value)
    for axis, (before, after) in enumerate(zip(pads[-2::-2], pads[::-2], strict=True), start=-len(pads) // 2):
        whole = op.Slice(x, [max(0, -before)], [min(0, after) or _END], [axis])
        head = [op.Slice(x, [-before + min(0, after)], [min(0, after) or _END], [axis])] if before > 0 else []
        tail = [op.Slice(x, [max(0, -before)], [after + max(0, -before)], [axis])] if after > 0 else []
        x = op.Concat(*head, whole, *tail, axis=axis)
    return x


@rule("aten::gelu", since=20)
def gelu(x: Any, approximate: str = "none") -> Any:
    return op20.Gelu(x, approximate=approximate)


@rule("aten::group_norm", since=21)
def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    channels = op21.Shape(x, start=1, end=2)
    one, zero = (ir.tensor([value], dtype=x.dtype) for value in (1.0, 0.0))
    weight = op21.ConstantOfShape(channels, value=one) if weight is None else weight
    bias = op21.ConstantOfShape(channels, value=zero) if bias is None else bias
    return op21.GroupNormalization(x, weight, bias, epsilon=eps, num_groups=num_groups)


@rule("aten::grid_sampler_3d", since=20)
def grid_sample_3d(x: Any, grid: Any, interpolation: int, padding: int, align_corners: bool) -> Any:
    mode = ("linear", "nearest", "cubic")[interpolation]
    padding_mode = ("zeros", "border", "reflection")[padding]
    return op20.GridSample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=int(align_corners))


@rule("aten::affine_grid_generator", since=20)
def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
    return op20.AffineGrid(theta, size, align_corners=int(align_corners))


@rule(
    "aten::_assert_async.msg",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
def nothing(*_: Any, **__: Any) -> None:
    """Checks have no form in ONNX."""
