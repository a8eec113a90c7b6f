"""Storages of traced tensors: programs may query their size, and resize those of inputs if that is recorded.

A functional graph has values, and operators on them. An operation on a storage is not a value of any node: it would be
lost, or be applied to storage that does not exist while tracing.

Before: ``w.untyped_storage().resize_(full); w.copy_(gathered); y = x @ w; w.untyped_storage().resize_(0)``
After:  ``y = x @ gathered``, and the fact that the storage of ``w`` has no bytes afterwards
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from precast.errors import CaptureError

_aten = torch.ops.aten
_ACCESSES = (torch.Tensor.untyped_storage, torch.Tensor.storage)
# torch.compile's operator for `untyped_storage().resize_()`; it exists once torch's compiler was imported.
_RESIZES = "inductor::resize_storage_bytes_"
_POINTED_AT_STORAGES = {
    _aten.set_.source_Storage, _aten.set_.source_Storage_storage_offset,
    _aten.set.source_Storage, _aten.set.source_Storage_storage_offset,
}  # fmt: skip


@dataclass
class MemoryNotes:
    """The sizes of storages after a run that resized them, and at the run's first query, by fake storage."""

    resized: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)


_notes: ContextVar[MemoryNotes | None] = ContextVar("memory_notes", default=None)
# The methods of storages on which all others are based.
_TOUCHING = (
    "__getitem__", "__setitem__", "_byteswap", "_set_cdata", "_set_from_file", "_share_fd_cpu_",
    "_share_filename_cpu_", "_write_file", "clone", "copy_", "cpu", "data_ptr", "fill_", "share_memory_", "tolist",
)  # fmt: skip


@contextmanager
def noted_memory() -> Iterator[None]:
    """While active, storages may be resized: the caller applies the recorded sizes."""
    token = _notes.set(MemoryNotes())
    try:
        yield
    finally:
        _notes.reset(token)


def memory_notes() -> MemoryNotes:
    """New notes for the next run; they stay empty if none are being recorded."""
    if _notes.get() is None:
        return MemoryNotes()
    notes = MemoryNotes()
    _notes.set(notes)
    return notes


def is_storage_resize(func: Any) -> bool:
    """Whether a torch function is torch.compile's operator for ``untyped_storage().resize_()``."""
    packet = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
    return isinstance(packet, torch._ops.OpOverloadPacket) and packet._qualified_op_name == _RESIZES


def resize_storage(tensor: torch.Tensor, size: int) -> None:
    """Record the new size, in bytes, of a traced tensor's storage."""
    _note_resize(tensor.untyped_storage(), size)


def _note_resize(storage: torch.UntypedStorage, size: int) -> None:
    if (notes := _notes.get()) is None:
        _refuse("resizes the memory under a tensor (untyped_storage().resize_())")
    if not isinstance(size, int):
        _refuse("resizes the memory under a tensor to a size that is dynamic", "Compile with dynamic=False.")
    notes.resized[storage._cdata] = size


def memory_given_away() -> CaptureError:
    return CaptureError(
        "The program asks how large the memory of an input is, and that is not what tracing saw.",
        why="its memory was given away, or it is a part of larger memory",
        fix="Give it memory of its own before the call, or resize it without asking.",
    )


def refuse_resize_of_intermediates() -> NoReturn:
    _refuse("resizes the memory under a tensor that is not one of its inputs")


def is_storage_access(func: Any, args: Any) -> bool:
    """Whether a torch function returns the storage of a traced tensor."""
    return func in _ACCESSES and isinstance(args[0], FakeTensor | FunctionalTensor)


def guarded_storage(func: Any, *args: Any) -> Any:
    """The storage that the access returns, which from then on refuses reads and writes."""
    storage = func(*args)
    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    # Torch keeps one Python object per storage, so the next access returns the guarded one as well.
    untyped.__class__ = _TracedStorage
    return storage


def refuse_operators_on_storages(func: Any) -> None:
    """Raise for operators that take storages."""
    if func in _POINTED_AT_STORAGES:
        _refuse("points a tensor at a storage (set_)", "Give set_() a tensor of that memory.")
    if is_storage_resize(func):
        _refuse("resizes the memory under a tensor (untyped_storage().resize_())")


class _TracedStorage(torch.UntypedStorage):
    """The storage of a traced tensor, which has no memory."""

    def resize_(self, size: int) -> "_TracedStorage":
        _note_resize(self, size)
        return self

    def nbytes(self) -> int:
        notes, key = _notes.get() or MemoryNotes(), self._cdata
        return notes.resized[key] if key in notes.resized else notes.asked.setdefault(key, super().nbytes())

    def size(self) -> int:
        return self.nbytes()

    def __len__(self) -> int:
        return self.nbytes()


def _refusal(method: str) -> Any:
    def refuse(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"touches the memory under a tensor (untyped_storage().{method}())")

    return refuse


for _method in _TOUCHING:
    setattr(_TracedStorage, _method, _refusal(_method))


def _refuse(deed: str, fix: str = "Work on the tensor itself, or do this outside of what is compiled.") -> NoReturn:
    raise CaptureError(
        f"The program {deed}.",
        why="a compiled program is a graph of tensors, in which what is done to their memory has no place",
        fix=fix,
    )
