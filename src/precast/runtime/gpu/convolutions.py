"""Convolutions and their gradients by cuDNN; transposed convolutions are such gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass, replace

from precast.runtime.gpu.arrays import DeviceArray
from precast.runtime.gpu.device import Gpu
from precast.runtime.gpu.libraries import CUDNN, check, functions

_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
_NCHW, _NHWC = 0, 1
_CROSS_CORRELATION = 1
_TENSOR_CORES, _NO_TENSOR_CORES = 1, 3
_KINDS = {
    "convolution": "Forward", "convolution_backward_data": "BackwardData", "convolution_backward_weights":
    "BackwardFilter",
}  # fmt: skip
MOST_WORKSPACE = 2**30
_RUN = (*(c_void_p,) * 7, c_int, c_void_p, c_size_t, *(c_void_p,) * 3)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnCreateTensorDescriptor": (POINTER(c_void_p),),
    "cudnnCreateFilterDescriptor": (POINTER(c_void_p),),
    "cudnnCreateConvolutionDescriptor": (POINTER(c_void_p),),
    "cudnnSetTensorNdDescriptor": (c_void_p, c_int, c_int, POINTER(c_int), POINTER(c_int)),
    "cudnnSetFilterNdDescriptor": (c_void_p, c_int, c_int, c_int, POINTER(c_int)),
    "cudnnSetConvolutionNdDescriptor": (c_void_p, c_int, *(POINTER(c_int),) * 3, c_int, c_int),
    "cudnnSetConvolutionGroupCount": (c_void_p, c_int),
    "cudnnSetConvolutionMathType": (c_void_p, c_int),
    **{f"cudnnGetConvolution{kind}Algorithm_v7": (*(c_void_p,) * 5, c_int, POINTER(c_int), c_void_p)
       for kind in _KINDS.values()},
    **{f"cudnnConvolution{kind}": _RUN for kind in _KINDS.values()},
}  # fmt: skip


class _Performance(Structure):
    """``cudnnConvolutionFwdAlgoPerf_t``, and those of the gradients."""

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math", c_int),
        ("reserved", c_int * 3),
    )


@dataclass(frozen=True)
class _Shape:
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Convolution:
    """The key of a convolution's algorithm: its images, filters and results, and its geometry."""

    routine: str
    source: _Shape
    weights: _Shape
    result: _Shape
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    source: c_void_p
    weights: c_void_p
    result: c_void_p
    geometry: c_void_p
    algorithm: int
    workspace: int


class Convolutions:
    """Convolutions on one GPU; cuDNN is asked for the algorithm of each only once."""

    def __init__(self, gpu: Gpu, *, tf32: bool):
        self.gpu, self.tf32 = gpu, tf32
        self.library, self.handle = functions(CUDNN, _SIGNATURES), c_void_p()
        check(self.library.cudnnCreate(byref(self.handle)), "starting cuDNN")
        check(self.library.cudnnSetStream(self.handle, gpu.stream), "starting cuDNN")
        self.plans: dict[_Convolution, _Plan] = {}

    def convolve(
        self, routine: str, first: DeviceArray, second: DeviceArray, output: DeviceArray, numbers: tuple[int, ...]
    ) -> None:
        """Write `output`. Filters are dense, with channels first or last."""
        if len(output.shape) == 3:
            # cuDNN has only images: one-dimensional inputs become images of one row.
            spatial, rows = numbers[1:], ((1,), (0,), (1,))
            pairs = [number for row, each in zip(rows, spatial, strict=True) for number in (*row, each)]
            first, second, output = map(_as_image, (first, second, output))
            numbers = (numbers[0], *pairs)
        # Named as in the forward: images, filters, and results.
        source, weights, result = {
            "convolution": (first, second, output),
            "convolution_backward_data": (output, second, first),
            "convolution_backward_weights": (first, output, second),
        }[routine]
        key = _Convolution(routine, _shape(source), _shape(weights), _shape(result), numbers)
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(key)
        workspace = self.gpu.allocate(plan.workspace)
        scalar = ctypes.c_double if output.dtype == "f64" else c_float
        one, zero = scalar(1), scalar(0)
        tensors = {
            "convolution": (plan.source, source, plan.weights, weights, plan.result, result),
            "convolution_backward_data": (plan.weights, weights, plan.result, result, plan.source, source),
            "convolution_backward_weights": (plan.source, source, plan.result, result, plan.weights, weights),
        }[routine]
        a, first_array, b, second_array, c, third_array = tensors
        run = getattr(self.library, f"cudnnConvolution{_KINDS[routine]}")
        status = run(
            self.handle, ctypes.addressof(one), a, first_array.address, b, second_array.address, plan.geometry,
            plan.algorithm, workspace.address, plan.workspace, ctypes.addressof(zero), c, third_array.address,
        )  # fmt: skip
        check(status, f"a convolution of {source.shape} and {weights.shape} by cuDNN")

    def _plan(self, key: _Convolution) -> _Plan:
        library = self.library
        source, result = self._tensor(key.source), self._tensor(key.result)
        weights, geometry = self._filter(key.weights), self._geometry(key)
        order = {
            "convolution": (source, weights, geometry, result),
            "convolution_backward_data": (weights, result, geometry, source),
            "convolution_backward_weights": (source, result, geometry, weights),
        }[key.routine]
        found, count = (_Performance * 8)(), c_int()
        ask = getattr(library, f"cudnnGetConvolution{_KINDS[key.routine]}Algorithm_v7")
        check(ask(self.handle, *order, 8, byref(count), ctypes.addressof(found)), f"finding a way to compute {key}")
        fitting = [each for each in found[: count.value] if not each.status and each.memory <= MOST_WORKSPACE]
        check(not fitting, f"finding a way to compute {key}")
        best = fitting[0]
        if key.source.dtype != "f32" or self.tf32:
            # Keep single precision: the default math type would round to TF32.
            check(library.cudnnSetConvolutionMathType(geometry, best.math), "describing a convolution")
        return _Plan(source, weights, result, geometry, best.algorithm, best.memory)

    def _tensor(self, shape: _Shape) -> c_void_p:
        made, rank = c_void_p(), len(shape.sizes)
        check(self.library.cudnnCreateTensorDescriptor(byref(made)), "describing images")
        sizes, strides = _numbers(shape.sizes), _numbers(shape.strides)
        status = self.library.cudnnSetTensorNdDescriptor(made, _TYPES[shape.dtype], rank, sizes, strides)
        check(status, f"describing images {shape}")
        return made

    def _filter(self, shape: _Shape) -> c_void_p:
        made, rank = c_void_p(), len(shape.sizes)
        order = _NHWC if is_channels_last(shape.sizes, shape.strides) else _NCHW
        check(self.library.cudnnCreateFilterDescriptor(byref(made)), "describing filters")
        create, sizes = self.library.cudnnSetFilterNdDescriptor, _numbers(shape.sizes)
        check(create(made, _TYPES[shape.dtype], order, rank, sizes), f"describing filters {shape}")
        return made

    def _geometry(self, key: _Convolution) -> c_void_p:
        made, spatial = c_void_p(), len(key.source.sizes) - 2
        groups, *numbers = key.numbers
        stride, padding, dilation = (_numbers(numbers[part * spatial :][:spatial]) for part in range(3))
        check(self.library.cudnnCreateConvolutionDescriptor(byref(made)), "describing a convolution")
        compute = _TYPES["f64" if key.source.dtype == "f64" else "f32"]
        status = self.library.cudnnSetConvolutionNdDescriptor(
            made, spatial, padding, stride, dilation, _CROSS_CORRELATION, compute
        )
        check(status, f"describing a convolution {key}")
        check(self.library.cudnnSetConvolutionGroupCount(made, groups), "describing a convolution")
        math = _NO_TENSOR_CORES if key.source.dtype == "f32" and not self.tf32 else _TENSOR_CORES
        check(self.library.cudnnSetConvolutionMathType(made, math), "describing a convolution")
        return made


def _as_image(array: DeviceArray) -> DeviceArray:
    (batch, channels, length), (a, b, c) = array.shape, array.strides
    return replace(array, shape=(batch, channels, 1, length), strides=(a, b, c * max(length, 1), c))


def _shape(array: DeviceArray) -> _Shape:
    return _Shape(array.dtype, array.shape, array.strides)


def _numbers(values: Sequence[int]) -> ctypes.Array[c_int]:
    return (c_int * len(values))(*values)


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Dense strides, for dimensions ordered from the outermost to the innermost."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def _is_laid_out(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    wanted = dense_strides(shape, order)
    return all(size <= 1 or a == b for size, a, b in zip(shape, strides, wanted, strict=True))


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether filters or images are dense with channels last, and not contiguous."""
    rank = len(shape)
    return not _is_laid_out(shape, strides, range(rank)) and _is_laid_out(shape, strides, (0, *range(2, rank), 1))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether filters or images are dense, channels first or last."""
    return _is_laid_out(shape, strides, range(len(shape))) or is_channels_last(shape, strides)
