"""Arrays of numpy, torch and other libraries as the C structure that compiled code reads. Never imports torch.

Numpy has no bfloat16: its arrays are those of ``ml_dtypes``, if it is installed, else bits.

Bits are ``uint16``, a type that no program uses otherwise. Callers who pass bits receive bits.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple, Protocol

import numpy as np

from precast.artifact.dtypes import DTYPES, SHORT_NAMES
from precast.artifact.weights import Weight
from precast.errors import InputTypeError, InputValueError
from precast.runtime.memory import LARGE, make_ready, take_large

Array = np.ndarray[Any, np.dtype[Any]]


class Tensor(Protocol):
    """Anything that exports its memory by DLPack."""

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


CUDA = 2
"""DLPack's number for GPUs of NVIDIA's."""
_CODES = {each.name: (each.code, each.bits) for each in DTYPES.values()}
_NAMES = {code: name for name, code in _CODES.items()}
_dtype_and_shape = attrgetter("dtype", "shape")


@lru_cache(maxsize=256)
def type_name(dtype: object) -> str:
    """The name of a dtype in both numpy and torch: ``float32``."""
    return str(dtype).removeprefix("torch.")


def short_name(code: int, bits: int) -> str:
    """The short name of a DLPack type: ``f32``."""
    return SHORT_NAMES[_NAMES[code, bits]]


class Layout(NamedTuple):
    """A tensor's descriptor without its address: bytes of the structure, and the arrays they point to."""

    description: bytes
    owners: tuple[object, ...]


class PackedTensors(NamedTuple):
    """An array of `precast_tensor` as bytes; `owners` keep alive what it points to."""

    content: bytes
    length: int
    owners: tuple[object, ...]


def pack_tensors(tensors: Sequence[Tensor | Weight]) -> PackedTensors:
    """Describe tensors' memory to compiled code."""
    # Bytes are assembled directly: filling ctypes structures field by field takes longer than a small kernel.
    torch_tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    try:
        layouts = [
            _layout(each.dtype, each.shape, each.stride()) if isinstance(each, torch_tensor) else _layout_of(each)
            for each in tensors
        ]
    except _PartialStepsError:
        return pack_tensors([each if isinstance(each, torch_tensor) else _in_whole_steps(each) for each in tensors])
    addresses = [each.data_ptr() if isinstance(each, torch_tensor) else _address(each) for each in tensors]
    return _Layouts(layouts).pack(tensors, addresses)


def pack_with_room(tensors: Sequence[Tensor | Weight]) -> tuple[PackedTensors, Sequence[Layout]]:
    """Describe memory with room for more than compiled code writes: it stores the written sizes in the layouts."""
    layouts, addresses = list[Layout](), list[int]()
    for tensor in tensors:
        each: Any = tensor
        facts = (each.dtype, each.shape, each.stride()) if is_torch_tensor(each) else _facts_of(each)
        layouts.append(_layout.__wrapped__(*facts))
        addresses.append(each.data_ptr() if is_torch_tensor(each) else _address(each))
    return _Layouts(layouts).pack(tensors, addresses), layouts


def filled_part(tensor: Tensor | Weight, layout: Layout) -> Tensor | Weight:
    """The written part of a tensor with room for more, in memory of its own."""
    arrays: Any = layout.owners
    shape, strides = map(tuple, arrays)
    whole: Any = tensor
    if isinstance(tensor, Weight):
        return Weight(tensor.dtype, _cut(tensor.carrier, shape, strides))
    if isinstance(tensor, np.ndarray):
        return _cut(tensor, shape, strides)
    is_whole = (tuple(whole.shape), whole.stride()) == (shape, strides)
    filled: Tensor = whole if is_whole else whole.as_strided(shape, strides).clone()
    return filled


def _cut(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    steps = tuple(stride * array.itemsize for stride in strides)
    if (array.shape, array.strides) == (shape, steps):
        return array
    return np.lib.stride_tricks.as_strided(array, shape, steps).copy(order="K")


class _Layouts:
    """The layouts of several tensors, as an array of `precast_tensor` without addresses."""

    def __init__(self, layouts: Sequence[Layout]):
        self._owners = layouts
        self._fields: list[Any] = [None] * (2 * len(layouts))
        self._fields[1::2] = [layout.description for layout in layouts]
        self._struct = _fields_of(len(layouts))

    def pack(self, tensors: Sequence[object], addresses: Iterable[int]) -> PackedTensors:
        fields = self._fields.copy()
        fields[::2] = addresses
        return PackedTensors(self._struct.pack(*fields), len(tensors), (tensors, self._owners))


class RepeatedTensors:
    """The tensors that one call site passes repeatedly; torch tensors with unchanged layouts are fast."""

    def __init__(self) -> None:
        self._known: tuple[list[Any], list[Any], _Layouts] | None = None

    def pack(self, tensors: Sequence[Tensor | Weight]) -> PackedTensors:
        """The result of ``pack_tensors``."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return pack_tensors(tensors)
        kind = torch.Tensor
        try:
            strides = list(map(kind.stride, tensors))
        except TypeError:
            # Not all are torch tensors.
            return pack_tensors(tensors)
        kinds = list(map(_dtype_and_shape, tensors))
        known = self._known
        if known is None or known[0] != kinds or known[1] != strides:
            layouts = [_layout(*facts, steps) for facts, steps in zip(kinds, strides, strict=True)]
            self._known = known = (kinds, strides, _Layouts(layouts))
        return known[2].pack(tensors, map(kind.data_ptr, tensors))


class TorchResults:
    """New torch tensors for the results of one call site, which have the same layout at every call."""

    def __init__(self, layouts: Sequence[tuple[tuple[int, int], Sequence[int], Sequence[int]]]):
        torch: Any = sys.modules["torch"]
        described = []
        self._make: list[partial[Any]] = []
        for code, shape, strides in layouts:
            name, sizes, steps = _NAMES[code], tuple(shape), tuple(strides)
            described.append(_layout(name, sizes, steps))
            if _length(sizes, steps) * code[1] // 8 < LARGE:
                make = partial(torch.empty_strided, sizes, steps, dtype=getattr(torch, name))
            else:
                make = partial(_allocate_for_torch, name, sizes, steps, code[1] // 8)
            self._make.append(make)
        self._has_large = any(make.func is _allocate_for_torch for make in self._make)
        self._threads = torch.get_num_threads
        self._layouts, self._address = _Layouts(described), torch.Tensor.data_ptr

    def make(self) -> tuple[list[Tensor], PackedTensors]:
        """The tensors, with undefined content, and their description."""
        results = [make() for make in self._make]
        if self._has_large:
            make_ready(self._threads())
        return results, self._layouts.pack(results, map(self._address, results))


@cache
def _fields_of(count: int) -> Struct:
    """Addresses, each followed by the rest of its tensor's descriptor."""
    return Struct("=" + f"Q{ctypes.sizeof(CTensor) - 8}s" * count)


def _layout_of(tensor: Tensor | Weight) -> Layout:
    return _layout(*_facts_of(tensor))


def _facts_of(tensor: Tensor | Weight) -> tuple[object, tuple[int, ...], tuple[int, ...]]:
    if isinstance(tensor, Weight):
        # A weight states its own type, since numpy has no bfloat16.
        return DTYPES[tensor.dtype].name, tensor.carrier.shape, _strides(tensor.carrier)
    assert isinstance(tensor, np.ndarray), "`as_tensor` makes it one"
    return tensor.dtype, tensor.shape, _strides(tensor)


def _address(tensor: Tensor | Weight) -> int:
    array = tensor.carrier if isinstance(tensor, Weight) else tensor
    assert isinstance(array, np.ndarray), "`as_tensor` makes it one"
    address: int = array.__array_interface__["data"][0]
    return address


def _in_whole_steps(tensor: Tensor | Weight) -> Tensor | Weight:
    """The tensor, or a copy if its strides are not multiples of its element size, as in a field of records."""
    array = tensor.carrier if isinstance(tensor, Weight) else tensor
    assert isinstance(array, np.ndarray), "`as_tensor` makes it one"
    if _steps(array.strides, array.itemsize) is not None:
        return tensor
    # `ascontiguousarray` does not copy a single element, whatever its strides.
    copy = np.array(array, order="C")
    return Weight(tensor.dtype, copy) if isinstance(tensor, Weight) else copy


class _PartialStepsError(Exception):
    """Strides are not multiples of the element size."""


def _strides(array: Array) -> tuple[int, ...]:
    steps = _steps(array.strides, array.itemsize)
    if steps is None:
        raise _PartialStepsError
    return steps


@lru_cache(maxsize=4096)
def _steps(strides: tuple[int, ...], item_size: int) -> tuple[int, ...] | None:
    """Strides in elements; None if they are not multiples of the element size."""
    is_whole = item_size > 0 and not any(stride % item_size for stride in strides)
    return tuple(stride // item_size for stride in strides) if is_whole else None


@lru_cache(maxsize=4096)
def _layout(dtype: object, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """Memoized: programs are called with few layouts."""
    name = type_name(dtype)
    if name not in _CODES:
        raise InputTypeError(
            f"tensors of {name} are not supported",
            why=f"compiled code knows {', '.join(_CODES)}",
            fix="convert the tensor first",
        )
    rank, (code, bits) = len(shape), _CODES[name]
    numbers = ctypes.c_int64 * rank
    sizes, steps = numbers(*shape), numbers(*strides)
    description = bytes(CTensor(None, 1, 0, rank, code, bits, 1, sizes, steps, 0))[8:]
    return Layout(description, (sizes, steps))


def is_on_gpu(value: object) -> bool:
    """Whether a value is some library's array in the memory of an NVIDIA GPU."""
    if isinstance(value, np.ndarray | int | float):
        return False
    if is_torch_tensor(value):
        return bool(value.is_cuda)  # type: ignore[attr-defined]
    ask = getattr(value, "__dlpack_device__", None)
    return ask is not None and ask()[0] == CUDA


def as_host_array(value: Any) -> Array:
    """Any library's array in host memory, as a numpy array."""
    if isinstance(value, np.ndarray):
        return value
    if is_torch_tensor(value):
        made: Array = value.detach().cpu().numpy()
        return made
    return np.asarray(value.get() if hasattr(value, "get") else value)


def is_torch_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_tensor(value: object, *, name: str) -> Tensor:
    """A value that compiled code can read: tensors as they are, an integer as a size; lists are refused."""
    if isinstance(value, np.ndarray):
        return value
    if is_torch_tensor(value):
        return _checked_torch(value, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return _as_size(value, name)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _shared(value, name)
    raise InputTypeError(
        f"{name} is of type {type(value).__name__}, not a tensor",
        why="compiled code reads memory in place",
        fix="pass a numpy array, or anything else that has __dlpack__",
    )


def _checked_torch(value: Any, name: str) -> Tensor:
    """A torch tensor whose elements are in memory, as sizes and strides say."""
    if value.is_nested or value.layout is not sys.modules["torch"].strided:
        raise InputTypeError(
            f"{name} is a tensor with the layout {'nested' if value.is_nested else value.layout}",
            why="compiled code reads elements where sizes and strides say that they are",
            fix="pass a dense tensor, for example value.to_dense()",
        )
    checked: Tensor = value
    return checked


def _as_size(value: int, name: str) -> Tensor:
    if not -(2**63) <= value < 2**63:
        raise InputValueError(
            f"{name} is a number of {value.bit_length()} bits",
            why="sizes are numbers of 64 bits",
            fix="pass a smaller one",
        )
    return np.asarray(value, np.int64)


def _shared(value: Any, name: str) -> Array:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as problem:
        raise InputTypeError(
            f"{name}, a {type(value).__name__}, does not export its memory",
            why=str(problem),
            fix="pass a numpy array, or a tensor on the CPU of a dtype that numpy has",
        ) from problem


def as_in_memory(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if torch negates or conjugates it lazily: its memory then holds other numbers."""
    if not is_torch_tensor(tensor):
        return tensor
    lazy: Any = tensor
    return lazy.resolve_conj().resolve_neg() if lazy.is_neg() or lazy.is_conj() else tensor


def allocate(code: tuple[int, int], shape: Sequence[int], strides: Sequence[int], *, like_torch: bool) -> Tensor:
    """New memory of this layout, as a torch tensor or a numpy array."""
    name = _NAMES[code]
    if like_torch:
        try:
            return _allocate_for_torch(name, tuple(shape), tuple(strides), code[1] // 8)
        except RuntimeError as problem:
            raise MemoryError(f"no memory for a result of the sizes {list(shape)}") from problem
    return allocate_array(np.dtype(name), shape, strides)


def _allocate_for_torch(name: str, shape: tuple[int, ...], strides: tuple[int, ...], item_size: int) -> Tensor:
    torch: Any = sys.modules["torch"]
    dtype = getattr(torch, name)
    block = take_large(_known_length(shape, strides) * item_size)
    if block is None:
        made: Tensor = torch.empty_strided(shape, strides, dtype=dtype)
        return made
    # Not a view of the tensor that wraps the block: autograd treats views differently.
    filled: Tensor = torch.empty(0, dtype=dtype).set_(
        torch.frombuffer(block, dtype=torch.uint8).untyped_storage(), 0, shape, strides
    )
    return filled


def allocate_array(dtype: np.dtype[Any], shape: Sequence[int], strides: Sequence[int]) -> Array:
    """New memory of this layout as a numpy array; strides count elements."""
    length = _length(shape, strides)
    block = take_large(length * dtype.itemsize)
    memory = np.empty(length, dtype) if block is None else np.frombuffer(memoryview(block), dtype)
    byte_strides = [stride * dtype.itemsize for stride in strides]
    return np.ndarray(tuple(shape), dtype, memory, 0, byte_strides)


@lru_cache(maxsize=4096)
def _known_length(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return _length(shape, strides)


def _length(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0


_BITS = np.dtype(np.uint16)


def is_bfloat16(value: object) -> bool:
    """Whether a value is an array of bfloat16, by that name or as bits."""
    return isinstance(value, np.ndarray) and (value.dtype == _BITS or value.dtype.name == "bfloat16")


def are_bits(values: Sequence[object]) -> bool:
    """Whether there are bits among the arrays of a call."""
    return any(isinstance(value, np.ndarray) and value.dtype == _BITS for value in values)


def with_bits(value: Any, dtype: str) -> Any:
    """The argument for a tensor of this type in the form that compiled code accepts: only bfloat16 is converted."""
    return Weight(dtype, value.view(_BITS)) if dtype == "bf16" and is_bfloat16(value) else value


def without_bits(value: Any, *, as_bits: bool) -> Any:
    """A result for the caller: bfloat16 in the requested form, all else as it is."""
    if not isinstance(value, Weight):
        return value
    named = None if as_bits else _named()
    return value.carrier if named is None else value.carrier.view(named)


@cache
def _named() -> np.dtype[Any] | None:
    try:
        import ml_dtypes
    except ImportError:
        return None
    named: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return named
