"""Elementwise operators and others that are one or two nodes, where torchlib lacks them or newer opsets are shorter.

Also distances.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core, nn

from precast.onnx.element_types import dtype_of
from precast.onnx.rules.opsets import integer, integers, number, op, op20, op21
from precast.onnx.rules.registry import rule, static_size
from precast.onnx.weights import TorchWeight


@rule("aten::fmax")
def fmax(x: Any, y: Any) -> Any:
    if not x.dtype.is_floating_point():
        return maximum_of_two(x, y)
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, op.Max(x, y)))


@rule("aten::fmin")
def fmin(x: Any, y: Any) -> Any:
    if not x.dtype.is_floating_point():
        return minimum_of_two(x, y)
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, op.Min(x, y)))


@rule("aten::signbit")
def signbit(x: Any) -> Any:
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return op.Less(x, number(0, x)) if x.dtype != ir.DataType.BOOL else op.And(x, op.Not(x))
    zero = number(0.0, x)
    # The sign of minus zero shows in its reciprocal.
    return op.Or(op.Less(x, zero), op.And(op.Equal(x, zero), op.Less(op.Reciprocal(x), zero)))


@rule("aten::atan2")
def angle_of_point(y: Any, x: Any) -> Any:
    """Torchlib's rule is wrong on the negative half of the first axis."""
    height, width = op.Abs(y), op.Abs(x)
    infinite = number(math.inf, x)
    are_infinite = op.And(op.Equal(height, infinite), op.Equal(width, infinite))
    is_level = op.And(op.Equal(height, number(0.0, y)), op.Not(op.IsNaN(x)))
    ratio = op.Where(are_infinite, number(1.0, x), op.Div(height, width))
    angle = op.Where(is_level, number(0.0, x), op.Atan(ratio))
    angle = op.Where(signbit(x), op.Sub(number(math.pi, x), angle), angle)
    return op.Where(signbit(y), op.Neg(angle), angle)


@rule("aten::copysign.Tensor")
def copysign(x: Any, sign: Any) -> Any:
    size = op.Abs(x)
    return op.Where(signbit(sign), op.Neg(size), size)


@rule("aten::copysign.Scalar")
def copysignnumber(x: Any, sign: float) -> Any:
    return copysign(x, number(float(sign), x))


@rule("aten::sign", "aten::sgn")
def sign(x: Any) -> Any:
    """NaN has none, in torch."""
    if x.dtype == ir.DataType.BOOL:
        return op.Identity(x)
    found = op.Sign(x)
    return op.Where(op.IsNaN(x), number(0.0, x), found) if x.dtype.is_floating_point() else found


@rule("aten::angle")
def angle(x: Any) -> Any:
    """Half a turn for what is negative; that of NaN is NaN."""
    if not x.dtype.is_floating_point():
        x = op.Cast(x, to=ir.DataType.FLOAT)
    zero = number(0.0, x)
    return op.Where(op.Less(x, zero), number(math.pi, x), op.Where(op.IsNaN(x), x, zero))


@rule("aten::heaviside")
def step_function(x: Any, values: Any) -> Any:
    zero = number(0, x)
    return op.Where(op.Equal(x, zero), values, op.CastLike(op.Greater(x, zero), x))


@rule("aten::log_sigmoid")
def log_sigmoid(x: Any) -> Any:
    """Not the logarithm of what is zero below -100."""
    rest = op.Log(op.Add(op.Exp(op.Neg(op.Abs(x))), number(1.0, x)))
    return op.Sub(op.Min(x, number(0.0, x)), rest)


@rule("aten::hypot")
def hypot(x: Any, y: Any) -> Any:
    """Scaled by the larger operand, whose square may overflow."""
    larger, smaller = op.Max(op.Abs(x), op.Abs(y)), op.Min(op.Abs(x), op.Abs(y))
    one = number(1.0, x)
    ratio = op.Where(op.Equal(larger, smaller), one, op.Div(smaller, larger))
    return op.Mul(larger, op.Sqrt(op.Add(one, op.Mul(ratio, ratio))))


@rule("aten::logaddexp")
def log_add_exp(x: Any, y: Any) -> Any:
    """Relative to the larger operand, whose exponential may overflow."""
    distance = op.Where(op.Equal(x, y), number(0.0, x), op.Abs(op.Sub(x, y)))
    return op.Add(op.Max(x, y), op.Log(op.Add(number(1.0, x), op.Exp(op.Neg(distance)))))


@rule("aten::logaddexp2")
def log_add_exp2(x: Any, y: Any) -> Any:
    factor = number(math.log(2), x)
    return op.Div(log_add_exp(op.Mul(x, factor), op.Mul(y, factor)), factor)


@rule("aten::log2")
def log2(x: Any) -> Any:
    return op.Div(op.Log(x), number(math.log(2), x))


@rule("aten::log10")
def log10(x: Any) -> Any:
    return op.Div(op.Log(x), number(math.log(10), x))


_SMALL = 0.01
"""Below this, ``1 + x`` loses so many digits of ``x`` that a short series is more accurate."""


@rule("aten::log1p")
def log1p(x: Any) -> Any:
    one = number(1.0, x)
    series = number(1 / 5, x)
    for divisor in (4, 3, 2, 1):
        series = op.Sub(number(1 / divisor, x), op.Mul(x, series))
    return op.Where(op.Less(op.Abs(x), number(_SMALL, x)), op.Mul(x, series), op.Log(op.Add(one, x)))


@rule("aten::expm1")
def expm1(x: Any) -> Any:
    one = number(1.0, x)
    series = one
    for divisor in (5, 4, 3, 2):
        series = op.Add(one, op.Mul(op.Mul(x, number(1 / divisor, x)), series))
    return op.Where(op.Less(op.Abs(x), number(_SMALL, x)), op.Mul(x, series), op.Sub(op.Exp(x), one))


@rule("aten::pow.Scalar")
def power_of_number(base: Any, exponent: Any) -> Any:
    if isinstance(base, ir.Value):
        return op.Pow(op.CastLike(base, exponent), exponent)
    # onnxruntime drops the dimensions of an exponent of one element, if the base has none.
    full = np.full([1] * len(exponent.shape), base, dtype=exponent.dtype.numpy())
    return op.Pow(op.Constant(value=ir.tensor(full)), exponent)


@rule("aten::_cdist_forward")
def pairwise_distance(x: Any, y: Any, p: float, compute_mode: int | None = None) -> Any:
    rank = len(x.shape)
    return _norm(op.Sub(op.Unsqueeze(x, [rank - 1]), op.Unsqueeze(y, [len(y.shape) - 2])), p)


@rule("aten::_pdist_forward")
def own_distances(x: Any, p: float = 2.0) -> Any:
    """Distances between each row and every later one."""
    count = static_size(x, 0, "Distances between rows")
    if count == 1:
        return op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=x.dtype))
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = (
        op.Constant(value=ir.tensor([pair[side] for pair in pairs], dtype=ir.DataType.INT64)) for side in (0, 1)
    )
    return _norm(op.Sub(op.Gather(x, first), op.Gather(x, second)), p)


def _norm(difference: Any, p: float) -> Any:
    size = op.Abs(difference)
    if p == 0:
        return op.ReduceSum(op.CastLike(op.Greater(size, op.CastLike(0.0, size)), size), [-1], keepdims=0)
    if p == 1:
        return op.ReduceSum(size, [-1], keepdims=0)
    if p == 2:
        return op.Sqrt(op.ReduceSumSquare(difference, [-1], keepdims=0))
    if p == float("inf"):
        return op.ReduceMax(size, [-1], keepdims=0)
    power = op.CastLike(float(p), size)
    return op.Pow(op.ReduceSum(op.Pow(size, power), [-1], keepdims=0), op.Reciprocal(power))


_END = 2**62
"""Past the last element, whatever the size."""


@rule("aten::__and__.Tensor", "aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::__and__.Scalar")
def bitwise_and(x: Any, y: Any) -> Any:
    return op.And(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseAnd(x, y)


@rule("aten::__or__.Tensor", "aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar", "aten::__or__.Scalar")
def bitwise_or(x: Any, y: Any) -> Any:
    return op.Or(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseOr(x, y)


@rule("aten::__xor__.Tensor", "aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar", "aten::__xor__.Scalar")
def bitwise_xor(x: Any, y: Any) -> Any:
    return op.Xor(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseXor(x, y)


@rule("aten::min.other", "aten::minimum")
def minimum_of_two(x: Any, y: Any) -> Any:
    return op.And(x, y) if x.dtype == ir.DataType.BOOL else op.Min(x, y)


@rule("aten::max.other", "aten::maximum")
def maximum_of_two(x: Any, y: Any) -> Any:
    return op.Or(x, y) if x.dtype == ir.DataType.BOOL else op.Max(x, y)


@rule("aten::squeeze.dim", "aten::squeeze_copy.dim")
def squeeze_dim(x: Any, dim: int) -> Any:
    return squeeze_dims(x, [dim])


@rule("aten::squeeze.dims", "aten::squeeze_copy.dims")
def squeeze_dims(x: Any, dims: Sequence[int]) -> Any:
    ones = [dim for dim in dims if x.shape and x.shape[dim] == 1]
    return op.Squeeze(x, ones) if ones else op.Identity(x)


@rule("aten::copy")
def copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The source in the shape and type of the target; torchlib ignores the shape."""
    cast = source if source.dtype == x.dtype else op.CastLike(source, x)
    return op.Identity(cast) if list(source.shape) == list(x.shape) else op.Expand(cast, op.Shape(x))


def _window_rule(make: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Windows are constants: tracing specializes their length. ONNX's Hamming window has 25/46 in place of 0.54."""

    def window(length: int, *options: Any, dtype: int = -1, **_: Any) -> Any:
        data_type = ir.DataType.FLOAT if dtype in (-1, None) else ir.DataType(dtype)
        return op.Constant(value=TorchWeight(make(length, *options, dtype=dtype_of(data_type)), "window"))

    return window


for _name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
    _make = getattr(torch, f"{_name}_window")
    _overloads = ("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta", ".beta")
    rule(*(f"aten::{_name}_window{_overload}" for _overload in _overloads))(_window_rule(_make))


@rule("aten::fft_fftfreq")
def frequencies(n: Any, d: float = 1.0, *, dtype: int = -1, **_: Any) -> Any:
    """Those of the second half are negative."""
    count = integer(n) if isinstance(n, int) else n
    places = op.Range(integer(0), count, integer(1))
    half = op.Div(op.Add(count, integer(1)), integer(2))
    return _per_length(op.Where(op.Less(places, half), places, op.Sub(places, count)), count, d, dtype)


@rule("aten::fft_rfftfreq")
def half_of_frequencies(n: Any, d: float = 1.0, *, dtype: int = -1, **_: Any) -> Any:
    count = integer(n) if isinstance(n, int) else n
    half = op.Add(op.Div(count, integer(2)), integer(1))
    return _per_length(op.Range(integer(0), half, integer(1)), count, d, dtype)


def _per_length(places: Any, count: Any, d: float, dtype: int) -> Any:
    data_type = ir.DataType.FLOAT if dtype in (-1, None) else ir.DataType(dtype)
    length = op.Mul(
        op.Cast(count, to=ir.DataType.DOUBLE), op.Constant(value=ir.tensor(float(d), dtype=ir.DataType.DOUBLE))
    )
    return op.Cast(op.Div(op.Cast(places, to=ir.DataType.DOUBLE), length), to=data_type)


@rule("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Any, *, output_size: int | None = None) -> Any:
    return core.aten_repeat_interleave_Tensor(repeats)


@rule("aten::roll")
def roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Torchlib's rule, except for shifts by symbolic sizes."""
    if all(isinstance(shift, int) for shift in shifts):
        return core.aten_roll(x, shifts, dims)
    rolled = x if dims else op.Reshape(x, integers(-1))
    for shift, axis in zip(shifts, dims or (0,), strict=True):
        size = op.Shape(rolled, start=axis, end=axis + 1) if axis >= 0 else op.Gather(op.Shape(rolled), integers(axis))
        kept = op.Sub(size, op.Mod(op.Reshape(shift, integers(-1)), size))
        parts = op.Slice(rolled, kept, size, integers(axis)), op.Slice(rolled, integers(0), kept, integers(axis))
        rolled = op.Concat(*parts, axis=axis)
    return rolled if dims else op.Reshape(rolled, op.Shape(x))


@rule("aten::pad")
def pad(x: Any, pads: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """Torchlib's rule, except for the mode that onnxruntime has no kernel for."""
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
    """Torchlib's rule, except for fractions, which torch computes in double precision and ONNX in single."""
    numbers = (start, end, step)
    if any(isinstance(number, ir.Value) for number in numbers) or all(isinstance(number, int) for number in numbers):
        return core.aten_arange_start_step(start, end, step, dtype)
    given = None if dtype == -1 else dtype_of(ir.DataType(dtype))
    return op.Constant(value=TorchWeight(torch.arange(start, end, step, dtype=given), "arange"))


@rule("aten::_upsample_bilinear2d_aa")
def smooth_linear_resize(x: Any, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> Any:
    """Torchlib's, as long as corners are not aligned."""
    if not align_corners:
        return nn.aten__upsample_bilinear2d_aa(x, output_size, align_corners, *scales)
    return _smooth_resize(x, output_size, torch.ops.aten._upsample_bilinear2d_aa)


@rule("aten::_upsample_bicubic2d_aa")
def smooth_cubic_resize(x: Any, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> Any:
    """Torchlib's, as long as corners are not aligned."""
    if not align_corners:
        return nn.aten__upsample_bicubic2d_aa(x, output_size, align_corners, *scales)
    return _smooth_resize(x, output_size, torch.ops.aten._upsample_bicubic2d_aa)


def _smooth_resize(x: Any, output_size: Sequence[Any], resize: Callable[..., torch.Tensor]) -> Any:
    """With corners aligned, which ONNX knows not how to smooth: one matrix for rows and one for columns."""
    height, width = (static_size(x, axis, "Smooth resizing with corners aligned") for axis in (-2, -1))
    rows, columns = _resizing(height, output_size[0], resize), _resizing(width, output_size[1], resize)
    return op.MatMul(op.MatMul(op.CastLike(_matrix(rows), x), x), op.CastLike(_matrix(columns.T), x))


def _resizing(size: int, wanted: int, resize: Callable[..., torch.Tensor]) -> torch.Tensor:
    """How each new element is mixed of the old ones: what torch makes of one old element at a time."""
    ones = torch.eye(size)[None, None]
    return resize(ones, [wanted, size], align_corners=True)[0, 0]


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
    "aten::_assert_async",
    "aten::_assert_async.msg",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::_linalg_check_errors",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
def nothing(*_: Any, **__: Any) -> None:
    """Checks have no equivalent in ONNX."""


@rule("aten::empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, *, dtype: int = -1, **_: Any) -> Any:
    """The content is undefined: zeros."""
    data_type = ir.DataType.FLOAT if dtype == -1 else ir.DataType(dtype)
    return op.ConstantOfShape(size, value=ir.tensor([0], dtype=data_type))
