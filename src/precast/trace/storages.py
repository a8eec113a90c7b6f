"""The memory under tensors: a program may ask how large it is, and do nothing to it.

A graph of values has tensors, and operators that tell what they do to them. What is done to the memory itself is no
value of any node: it would be lost, or be done to memory that is not there while tracing.
"""

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
# Those that others of a storage's methods are made of.
_TOUCHING = (
    "__getitem__", "__setitem__", "_byteswap", "_set_cdata", "_set_from_file", "_share_fd_cpu_",
    "_share_filename_cpu_", "_write_file", "clone", "copy_", "cpu", "data_ptr", "fill_", "resize_", "share_memory_",
    "tolist",
)  # fmt: skip


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
    if isinstance(func, torch._ops.OpOverload) and func._schema.name == _RESIZES:
        _refuse("resizes the memory under a tensor (untyped_storage().resize_())")


class _TracedStorage(torch.UntypedStorage):
    """The memory of a tensor that has none while it is traced."""


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
