"""GPU operations without torch: memory by the driver, GEMMs by cuBLASLt, convolutions by cuDNN.

Arrays in an unexpected layout are converted through host memory, which is slow but always possible; layout changes
within programs are kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product as combinations
from typing import Any

import numpy as np

from precast.artifact.dtypes import DTYPES
from precast.artifact.gpu_code import PackedGpuCode
from precast.artifact.gpu_programs import Call
from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputValueError
from precast.runtime.gpu.arrays import DeviceArray
from precast.runtime.gpu.bound import BoundWindow, Layout, Numbers, span
from precast.runtime.gpu.convolutions import Convolutions, dense_strides, is_dense
from precast.runtime.gpu.device import Gpu
from precast.runtime.gpu.driver import LoadedKernel
from precast.runtime.gpu.execute import ALIGNMENT, CONVOLUTIONS
from precast.runtime.gpu.products import Products, can_multiply


class GpuOperations:
    """Arrays of one GPU and the kernels of some code; use under `Gpu.lock` and within the GPU's context."""

    def __init__(self, gpu: Gpu, code: PackedGpuCode):
        self.gpu, self.code = gpu, code
        self.kernels: dict[int, LoadedKernel] = {}

    @cached_property
    def products(self) -> Products:
        return Products(self.gpu, tf32=self.code.tf32)

    @cached_property
    def convolutions(self) -> Convolutions:
        return Convolutions(self.gpu, tf32=self.code.tf32)

    def load_all(self) -> None:
        """Load libraries and kernels now rather than at the first call, so that missing ones are reported at once."""
        if "matmul" in self.code.routines:
            assert self.products
        if not self.code.routines.isdisjoint(CONVOLUTIONS):
            assert self.convolutions
        for number in range(len(self.code.kernels)):
            self.kernel(number)

    def kernel(self, number: int) -> LoadedKernel:
        if number not in self.kernels:
            packed = self.code.kernels[number]
            shape = (packed.symbol, packed.shared, packed.warps, packed.parameters)
            self.kernels[number] = LoadedKernel(packed.code, *shape)
        return self.kernels[number]

    # The interface of ``execute.Device``.

    def array(self, value: Any, layout: Layout) -> DeviceArray:
        array = value if isinstance(value, DeviceArray) else None
        dtype, shape = (value.dtype, value.shape) if array is not None else (value.dtype, value.carrier.shape)
        if (dtype, shape) != (layout.dtype, layout.shape):
            raise InputValueError(
                f"A program for a GPU was given {dtype}{list(shape)}.",
                why=f"it was made for {layout.dtype}{list(layout.shape)}",
                fix="Pass arrays as the model's description says.",
            )
        return self.uploaded(value, layout) if array is None else array

    def uploaded(self, value: Weight, layout: Layout) -> DeviceArray:
        """A host array copied to the GPU, in the wanted layout."""
        made = self.empty(layout)
        self.fill(made, value.carrier)
        return made

    def fits(self, array: DeviceArray, layout: Layout) -> bool:
        return (
            array.dtype == layout.dtype
            and array.shape == layout.shape
            and _is_same_order(array.shape, array.strides, layout.strides)
            and array.address % ALIGNMENT == 0
        )

    def empty(self, layout: Layout) -> DeviceArray:
        block = self.gpu.allocate(layout.length * DTYPES[layout.dtype].item_size)
        return DeviceArray(self.gpu, block, block.address, layout.dtype, layout.shape, layout.strides)

    def arena(self, size: int) -> DeviceArray:
        return self.empty(Layout("arena", 0, "u8", (size,), (1,)))

    def in_arena(self, arena: DeviceArray, layout: Layout) -> DeviceArray:
        address = arena.address + layout.offset
        return DeviceArray(self.gpu, arena, address, layout.dtype, layout.shape, layout.strides)

    def address(self, array: DeviceArray) -> int:
        return array.address

    def window(self, array: DeviceArray, window: BoundWindow) -> DeviceArray:
        address = array.address + window.offset * array.item_size
        return replace(array, address=address, shape=window.shape, strides=window.strides)

    def row(self, array: DeviceArray, number: int) -> DeviceArray:
        address = array.address + number * array.strides[0] * array.item_size
        return replace(array, address=address, shape=array.shape[1:], strides=array.strides[1:])

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        same = _is_same_order(source.shape, source.strides, target.strides)
        if same and target.dtype == source.dtype and _has_no_gaps(target):
            self.gpu.copy(target.address, source.address, source.span)
        else:
            self.fill(target, self.host(source))

    def host(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """The array's elements in host memory."""
        return _elements(self.gpu.download(array.address, array.span), array)

    def fill(self, target: DeviceArray, values: np.ndarray[Any, Any]) -> None:
        """Write host elements to an array; memory between its elements is unchanged."""
        if not target.span:
            return
        if _has_no_gaps(target):
            memory = np.empty(target.span, np.uint8)
        else:
            memory = self.gpu.download(target.address, target.span)
        _elements(memory, target)[...] = values
        self.gpu.upload(target.address, memory)

    def number(self, array: DeviceArray) -> int:
        return int(self.host(array).reshape(-1)[0])

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        self.kernel(kernel).launch(programs, addresses, sizes, self.gpu.stream.value or 0)

    def call_back(self, number: int, inputs: Sequence[DeviceArray], sizes: dict[str, int]) -> Sequence[DeviceArray]:
        raise AssertionError("packages hold no operators of torch")

    def multiply(self, call: Call, inputs: Sequence[DeviceArray], output: DeviceArray) -> None:
        assert call.routine == "matmul", f"there is no routine {call.routine}"
        if 0 in output.shape:
            return
        left, right, *others = inputs
        bias = None
        if call.epilogue:
            (bias,) = others
            bias = self.dense(replace(bias, shape=bias.shape[-1:], strides=bias.strides[-1:]))
        activations = [each.operation for each in call.epilogue[1:]]
        if left.shape[-1] == 0:
            assert bias is None, "empty products have no epilogue"
            self.fill(output, np.zeros((), weight_carrier(output.dtype)))
            return
        self.product(left, right, bias, output, activations)

    def product(
        self,
        left: DeviceArray,
        right: DeviceArray,
        bias: DeviceArray | None,
        output: DeviceArray,
        activations: Sequence[str] = (),
    ) -> None:
        """A product of matrices, or of batches of them, in any layout."""
        if len(output.shape) > 3:
            for place in combinations(*map(range, output.shape[:-3])):
                self.product(_inner(left, place), _inner(right, place), None, _inner(output, place))
            return
        left, right = (each if can_multiply(each) else self.dense(each) for each in (left, right))
        if output.strides[-1] == 1 or output.shape[-1] == 1:
            self.products.multiply(left, right, bias, output, activations)
        elif bias is None and (output.strides[-2] == 1 or output.shape[-2] == 1):
            self.products.multiply(_transposed(right), _transposed(left), None, _transposed(output))
        else:
            made = self.empty(_dense_layout(output))
            self.products.multiply(left, right, bias, made, activations)
            self.copy(output, made)

    def dense(self, array: DeviceArray) -> DeviceArray:
        """The array in a row-major layout."""
        layout = _dense_layout(array)
        if array.strides == layout.strides:
            return array
        made = self.empty(layout)
        self.copy(made, array)
        return made

    def convolve(self, routine: str, inputs: Sequence[DeviceArray], layout: Layout, numbers: Numbers) -> DeviceArray:
        # Filters, and operands whose layout torch would choose, must be dense.
        first, second = (each if is_dense(each.shape, each.strides) else self.dense(each) for each in inputs)
        if not is_dense(layout.shape, layout.strides):
            layout = replace(layout, strides=dense_strides(layout.shape, range(len(layout.shape))))
        made = self.empty(layout)
        if 0 in (*first.shape, *second.shape):
            self.fill(made, np.zeros((), weight_carrier(made.dtype)))
        elif 0 not in layout.shape:
            self.convolutions.convolve(routine, first, second, made, numbers)
        return made


def _is_same_order(shape: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    return all(size <= 1 or a == b for size, a, b in zip(shape, first, second, strict=True))


def _has_no_gaps(array: DeviceArray) -> bool:
    distinct = 1
    for size, stride in zip(array.shape, array.strides, strict=True):
        distinct *= 1 if stride == 0 else size
    return distinct == span(array.shape, array.strides)


def _elements(memory: np.ndarray[Any, Any], array: DeviceArray) -> np.ndarray[Any, Any]:
    """The elements of an array in a copy of its memory."""
    steps = [each * array.item_size for each in array.strides]
    return np.lib.stride_tricks.as_strided(memory.view(weight_carrier(array.dtype)), array.shape, steps)


def _dense_layout(array: DeviceArray) -> Layout:
    return Layout("library", 0, array.dtype, array.shape, dense_strides(array.shape, range(len(array.shape))))


def _inner(array: DeviceArray, place: Sequence[int]) -> DeviceArray:
    offset = sum(number * stride for number, stride in zip(place, array.strides, strict=False))
    rank = len(place)
    address = array.address + offset * array.item_size
    return replace(array, address=address, shape=array.shape[rank:], strides=array.strides[rank:])


def _transposed(array: DeviceArray) -> DeviceArray:
    *shape, rows, columns = array.shape
    *strides, a, b = array.strides
    return replace(array, shape=(*shape, columns, rows), strides=(*strides, b, a))
