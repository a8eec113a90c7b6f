"""Arrays on a GPU, for programs and, through DLPack, for other libraries."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import POINTER, PYFUNCTYPE, c_char_p, c_int, c_void_p, py_object
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precast.artifact.dtypes import DTYPES
from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputTypeError, InputValueError
from precast.runtime.gpu.bound import span
from precast.runtime.gpu.device import Block, Gpu
from precast.runtime.tensors import CUDA, CTensor, is_torch_tensor, short_name

_LEGACY_STREAM = 1


@dataclass
class DeviceArray:
    """An array on a GPU; `owner` keeps its memory alive. Converts by DLPack, and to numpy by ``numpy()``."""

    gpu: Gpu = field(repr=False)
    owner: object = field(repr=False)
    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def item_size(self) -> int:
        return DTYPES[self.dtype].item_size

    @property
    def span(self) -> int:
        """Bytes from the first to the last element."""
        return span(self.shape, self.strides) * self.item_size

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array in host memory, once it is computed; bfloat16 as its bits."""
        return self.weight().carrier

    def weight(self) -> Weight:
        with self.gpu.lock, self.gpu:
            memory = self.gpu.download(self.address, self.span)
        flat, steps = memory.view(weight_carrier(self.dtype)), [each * self.item_size for each in self.strides]
        return Weight(self.dtype, np.lib.stride_tricks.as_strided(flat, self.shape, steps))

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.gpu.ordinal

    def __dlpack__(self, *, stream: int | None = None, **others: object) -> object:
        """The array as a capsule; the stream waits for the computation."""
        with self.gpu.lock, self.gpu:
            if stream != -1:
                reader = _LEGACY_STREAM if stream is None else stream
                self.gpu.follow(self.gpu.stream.value, reader)
                if isinstance(self.owner, Block):
                    self.owner.readers.add(reader)
        return _capsule(self)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``."""


_Deleter = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = (("tensor", CTensor), ("context", c_void_p), ("deleter", _Deleter))
_NAME = b"dltensor"
_python = ctypes.pythonapi
_make_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _python))
_is_valid = PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _python))
_content = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _python))
_given: dict[int, tuple[object, ...]] = {}
"""Exported arrays, by the address of their descriptors: everything that must stay alive until they are released."""


def _give_back(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


def _drop(capsule: int) -> None:
    """Release a capsule that was never consumed."""
    if _is_valid(capsule, _NAME):
        _given.pop(_content(capsule, _NAME), None)


_deleter, _destructor = _Deleter(_give_back), PYFUNCTYPE(None, c_void_p)(_drop)


def _capsule(array: DeviceArray) -> object:
    code, bits, _, _ = DTYPES[array.dtype]
    numbers = ctypes.c_int64 * len(array.shape)
    shape, strides = numbers(*array.shape), numbers(*array.strides)
    tensor = CTensor(array.address, CUDA, array.gpu.ordinal, len(array.shape), code, bits, 1, shape, strides, 0)
    managed = _Managed(tensor, None, _deleter)
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, strides, array)
    return _make_capsule(address, _NAME, ctypes.cast(_destructor, c_void_p))


def borrowed(value: Any, gpu: Gpu) -> DeviceArray:
    """Another library's array, without a copy; our stream waits for its computation."""
    if isinstance(value, DeviceArray):
        return value
    kind, ordinal = value.__dlpack_device__()
    assert kind == CUDA, "only arrays on GPUs are borrowed"
    if ordinal != gpu.ordinal:
        raise InputValueError(
            f"An array is on cuda:{ordinal}, the model on cuda:{gpu.ordinal}.",
            why="a model runs where its weights are",
            fix=f"Load the model with device='cuda:{ordinal}', or move the array.",
        )
    capsule = (value.detach() if is_torch_tensor(value) else value).__dlpack__(stream=gpu.stream.value)
    tensor = ctypes.cast(_content(id(capsule), _NAME), POINTER(_Managed)).contents.tensor
    if tensor.dtype_lanes != 1:
        raise InputTypeError(
            "An array has elements that are vectors.", why="compiled code knows none", fix="Convert it first."
        )
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else _dense(shape)
    if any(each < 0 for each in strides):
        raise InputValueError(
            "An array on the GPU is reversed: a stride is negative.",
            why="programs take arrays whose first element comes first in memory",
            fix="Pass a contiguous copy.",
        )
    address = (tensor.data or 0) + tensor.byte_offset
    dtype = short_name(tensor.dtype_code, tensor.dtype_bits)
    return DeviceArray(gpu, (capsule, value), address, dtype, shape, strides)


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = list[int](), 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def handed_over(array: DeviceArray, like: object) -> Any:
    """The array as one of the same library as `like`: torch, CuPy or JAX; otherwise unchanged."""
    home = type(like).__module__.partition(".")[0]
    if is_torch_tensor(like):
        return sys.modules["torch"].from_dlpack(array)
    if home == "cupy":
        return sys.modules["cupy"].from_dlpack(array)
    if home in ("jax", "jaxlib"):
        return sys.modules["jax"].dlpack.from_dlpack(array)
    return array
