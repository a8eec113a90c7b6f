"""The memory under tensors: a program may ask how large it is, and where someone notes that, resize that of inputs.

A graph of values has tensors, and operators that tell what they do to them. What is done to the memory itself is no
value of any node: it would be lost, or be done to memory that is not there while tracing.

Before: ``w.untyped_storage().resize_(full); w.copy_(gathered); y = x @ w; w.untyped_storage().resize_(0)``
After:  ``y = x @ gathered``, and the note that the memory of ``w`` has no bytes afterwards
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
# What torch.compile makes of `untyped_storage().resize_()`; it is there once that was imported.
_RESIZES = "inductor::resize_storage_bytes_"
_POINTED_AT_STORAGES = {
    _aten.set_.source_Storage, _aten.set_.source_Storage_storage_offset,
    _aten.set.source_Storage, _aten.set.source_Storage_storage_offset,
}  # fmt: skip


@dataclass
class MemoryNotes:
    """How large the memory of tensors is after a run that resized it, and how large it was where the run asked first.

    By the storages that stand for it.
    """

    resized: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)


_notes: ContextVar[MemoryNotes | None] = ContextVar("memory_notes", default=None)
# Those that others of a storage's methods are made of.
_TOUCHING = (
    "__getitem__", "__setitem__", "_byteswap", "_set_cdata", "_set_from_file", "_share_fd_cpu_",
    "_share_filename_cpu_", "_write_file", "clone", "copy_", "cpu", "data_ptr", "fill_", "share_memory_", "tolist",
)  # fmt: skip


@contextmanager
def noted_memory() -> Iterator[None]:
    """While active, memory may be resized, and someone sees to it that this happens."""
    token = _notes.set(MemoryNotes())
    try:
        yield
    finally:
        _notes.reset(token)


def memory_notes() -> MemoryNotes:
    """New notes for the run that follows, which are empty for ever if nobody wants any."""
    if _notes.get() is None:
        return MemoryNotes()
    notes = MemoryNotes()
    _notes.set(notes)
    return notes


def is_storage_resize(func: Any) -> bool:
    """Whether a torch function is what torch.compile makes of ``untyped_storage().resize_()``."""
    packet = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
    return isinstance(packet, torch._ops.OpOverloadPacket) and packet._qualified_op_name == _RESIZES


def resize_storage(tensor: torch.Tensor, size: int) -> None:
    """Note that the memory of a traced tensor has so many bytes from now on."""
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
    _refuse("resizes the memory under a tensor that is no input of it")


def is_storage_access(func: Any, args: Any) -> bool:
    """Whether a torch function hands out the memory of a tensor that is traced."""
    return func in _ACCESSES and isinstance(args[0], FakeTensor | FunctionalTensor)


def guarded_storage(func: Any, *args: Any) -> Any:
    """What the access returns, which refuses from then on to be read or written."""
    storage = func(*args)
    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    # Torch keeps one object for each storage, so that the next access returns the guarded one as well.
    untyped.__class__ = _TracedStorage
    return storage


def refuse_operators_on_storages(func: Any) -> None:
    """Raise for operators that say by a storage, and not by a tensor, what they do."""
    if func in _POINTED_AT_STORAGES:
        _refuse("points a tensor at a storage (set_)", "Give set_() a tensor of that memory.")
    if is_storage_resize(func):
        _refuse("resizes the memory under a tensor (untyped_storage().resize_())")


class _TracedStorage(torch.UntypedStorage):
    """The memory of a tensor that has none while it is traced."""

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
