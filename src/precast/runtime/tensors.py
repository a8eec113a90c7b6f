"""Arrays of numpy, torch and others as the C structure that compiled code reads. Never imports torch."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from precast.errors import InputTypeError


class Tensor(Protocol):
    """Anything that hands over its memory by DLPack."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __dlpack__(self) -> object: ...


class CTensor(ctypes.Structure):
    """`precast_tensor`, which is DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# Short name → (DLPack code, bits, name in numpy and torch).
DTYPES = {
    "f64": (2, 64, "float64"), "f32": (2, 32, "float32"), "f16": (2, 16, "float16"), "bf16": (4, 16, "bfloat16"),
    "i64": (0, 64, "int64"), "i32": (0, 32, "int32"), "i16": (0, 16, "int16"), "i8": (0, 8, "int8"),
    "u8": (1, 8, "uint8"), "bool": (6, 8, "bool"),
}  # fmt: skip
_CODES = {name: (code, bits) for code, bits, name in DTYPES.values()}
_NAMES = {(code, bits): name for code, bits, name in DTYPES.values()}


def to_c_tensor(tensor: Tensor) -> CTensor:
    """Describe a tensor's memory; the tensor must outlive the description."""
    if is_torch_tensor(tensor):
        return _c_tensor(tensor.data_ptr(), str(tensor.dtype)[6:], tensor.shape, tensor.stride())  # type: ignore[attr-defined]
    array = tensor if isinstance(tensor, np.ndarray) else np.from_dlpack(tensor)  # type: ignore[arg-type]
    size = array.itemsize
    return _c_tensor(array.ctypes.data, array.dtype.name, array.shape, [stride // size for stride in array.strides])


def is_torch_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_tensor(value: object, *, name: str) -> Tensor:
    """A value that compiled code can read: tensors as they are, a whole number as a size; lists are refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(value, np.int64)
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return value  # type: ignore[return-value]
    raise InputTypeError(
        f"{name} is a {type(value).__name__}, not a tensor",
        why="compiled code reads memory in place",
        fix="pass a numpy array, or anything else that has __dlpack__",
    )


def allocate(code: tuple[int, int], shape: Sequence[int], strides: Sequence[int], *, like_torch: bool) -> Tensor:
    """New memory of this layout, as a torch tensor or a numpy array."""
    name = _NAMES[code]
    if like_torch:
        torch = sys.modules["torch"]
        made: Tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=getattr(torch, name))
        return made
    if name == "bfloat16":
        raise InputTypeError(
            "numpy has no bfloat16",
            why="an output of this model is bfloat16, and all inputs were numpy arrays",
            fix="pass torch tensors, or let the model give float32",
        )
    dtype = np.dtype(name)
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    flat = np.empty(length, dtype)
    byte_strides = [stride * dtype.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, byte_strides)


def _c_tensor(data: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> CTensor:
    rank = len(shape)
    if dtype not in _CODES:
        raise InputTypeError(
            f"tensors of {dtype} are not supported",
            why=f"compiled code knows {', '.join(_CODES)}",
            fix="convert the tensor first",
        )
    numbers = ctypes.c_int64 * rank
    code, bits = _CODES[dtype]
    return CTensor(data, 1, 0, rank, code, bits, 1, numbers(*shape), numbers(*strides), 0)
