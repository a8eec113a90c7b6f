"""Operators that torchlib lacks, or that newer opsets say in one node."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core, nn

from precast.onnx.element_types import dtype_of
from precast.onnx.opsets import op, op20, op21
from precast.onnx.rules import rule
from precast.onnx.static_sizes import static_size

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


@rule("aten::copy")
def copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The source in the shape and type of what it is copied to; torchlib forgets the shape."""
    cast = source if source.dtype == x.dtype else op.CastLike(source, x)
    return op.Identity(cast) if list(source.shape) == list(x.shape) else op.Expand(cast, op.Shape(x))


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


@rule("aten::arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: int = -1, **_: Any) -> Any:
    """Torchlib's, but for fractions, which torch counts in double precision and ONNX in single."""
    numbers = (start, end, step)
    if any(isinstance(number, ir.Value) for number in numbers) or all(isinstance(number, int) for number in numbers):
        return core.aten_arange_start_step(start, end, step, dtype)
    given = None if dtype == -1 else dtype_of(ir.DataType(dtype))
    return op.Constant(value=ir.tensor(torch.arange(start, end, step, dtype=given).numpy()))


@rule("aten::_upsample_bilinear2d_aa")
def smooth_resize(x: Any, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> Any:
    """Torchlib's; with corners aligned, which ONNX knows not how to smooth, one matrix for rows and one for columns."""
    if not align_corners:
        return nn.aten__upsample_bilinear2d_aa(x, output_size, align_corners, *scales)
    height, width = (static_size(x, axis, "Smooth resizing with corners aligned") for axis in (-2, -1))
    rows, columns = _resizing(height, output_size[0]), _resizing(width, output_size[1])
    return op.MatMul(op.MatMul(op.CastLike(_matrix(rows), x), x), op.CastLike(_matrix(columns.T), x))


def _resizing(size: int, wanted: int) -> torch.Tensor:
    """How each new element is mixed of the old ones: what torch makes of one old element at a time."""
    ones = torch.eye(size)[None, None]
    resized = torch.ops.aten._upsample_bilinear2d_aa(ones, [wanted, size], align_corners=True)
    matrix: torch.Tensor = resized[0, 0]
    return matrix


def _matrix(values: torch.Tensor) -> Any:
    return op.Constant(value=ir.tensor(values.contiguous().numpy()))


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
