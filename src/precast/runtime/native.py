"""The C interface of a compiled model, from Python: `include/precast.h` through ctypes."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

from precast.artifact.weights import Weight
from precast.errors import ArtifactError, InputValueError
from precast.runtime.tensors import CTensor, PackedTensors, Tensor, pack_tensors

ABI_VERSION = 3
_READABLE_VERSIONS = (2, 3)
MAX_RANK = 16
_INVALID_ARGUMENT, _MISMATCH, _OUT_OF_MEMORY, _INDEX_OUT_OF_RANGE = 1, 2, 3, 5

FallbackFunction = Callable[[int, int, Sequence[CTensor], Sequence[CTensor], Sequence[int]], None]

_FALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(CTensor), ctypes.c_size_t,
    ctypes.POINTER(CTensor), ctypes.c_size_t, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t,
)  # fmt: skip


class _NamedTensor(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("tensor", CTensor))


class _OpenOptions(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("weights", ctypes.POINTER(_NamedTensor)),
        ("weight_count", ctypes.c_size_t),
        ("weights_path", ctypes.c_char_p),
        ("fallback", _FALLBACK),
        ("fallback_data", ctypes.c_void_p),
    )


_TENSORS = (ctypes.c_void_p, ctypes.c_size_t)
_SIGNATURES: Mapping[str, tuple[object, ...]] = {
    "precast_open": (ctypes.POINTER(_OpenOptions), ctypes.POINTER(ctypes.c_void_p)),
    "precast_close": (ctypes.c_void_p,),
    "precast_entry_count": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "precast_entry_name": (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)),
    "precast_entry_json": (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)),
    "precast_infer": (ctypes.c_void_p, ctypes.c_size_t, *_TENSORS, *_TENSORS),
    "precast_run": (ctypes.c_void_p, ctypes.c_size_t, *_TENSORS, *_TENSORS),
    "precast_manifest_json": (ctypes.POINTER(ctypes.c_char_p),),
    "precast_state_count": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "precast_state_name": (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)),
    "precast_describe_state": (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(CTensor)),
    "precast_read_state": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    "precast_write_state": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
}  # fmt: skip

# Loaded code stays loaded, and is shared for equal bytes: it has no state of its own. Descriptors stay open, since
# the loader identifies libraries by path, and a path must not be reused.
_LOADED: dict[bytes, tuple[NativeLibrary, int]] = {}


class NativeLibrary:
    """A shared library with our C interface. It stays loaded until the process ends."""

    def __init__(self, handle: ctypes.CDLL):
        self.handle = handle
        handle.precast_last_error.restype = ctypes.c_char_p
        handle.precast_abi_version.restype = ctypes.c_uint32
        self.version: int = handle.precast_abi_version()
        if self.version not in _READABLE_VERSIONS:
            raise ArtifactError(
                f"the model uses version {self.version} of the C interface, this runtime version {ABI_VERSION}",
                why="it was built by another version of Precast",
                fix="package it again, or install the version it was built with",
            )
        for name, arguments in _SIGNATURES.items():
            function = getattr(handle, name)
            function.argtypes, function.restype = list(arguments), ctypes.c_int32

    def manifest(self) -> str:
        """The calling conventions of the entries, if the library contains them; else empty."""
        text = ctypes.c_char_p()
        self.check(self.handle.precast_manifest_json(ctypes.byref(text)))
        return (text.value or b"").decode()

    def check(self, status: int) -> None:
        """Raise the error of a status other than 0."""
        if status != 0:
            raise _failure(status, self.handle.precast_last_error().decode(errors="replace"))


def _failure(status: int, message: str) -> Exception:
    if status in (_INVALID_ARGUMENT, _MISMATCH):
        return InputValueError(
            message,
            why="compiled code reads and writes memory as it was compiled to",
            fix="pass tensors as the model's description says",
        )
    return {_OUT_OF_MEMORY: MemoryError, _INDEX_OUT_OF_RANGE: IndexError}.get(status, RuntimeError)(message)


def load_library(path: Path) -> NativeLibrary:
    """Load a library that this machine built."""
    return NativeLibrary(ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))


def load_library_bytes(code: bytes, *, name: str) -> NativeLibrary:
    """Load exactly these bytes: from memory that cannot be changed between checking and loading."""
    digest = hashlib.sha256(code).digest()
    if digest in _LOADED:
        return _LOADED[digest][0]
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as memory:
        memory.write(code)
    fcntl.fcntl(
        descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    try:
        library = load_library(Path(f"/proc/self/fd/{descriptor}"))
        _LOADED[digest] = (library, descriptor)
        return library
    except (OSError, AttributeError) as problem:
        os.close(descriptor)
        raise ArtifactError(
            f"{name} cannot be loaded: {problem}",
            why="its code is not a model library, or a library it needs is missing",
            fix="package the model again on a machine like this one",
        ) from problem


class _Teams:
    """Whether this thread may use a team: one that survives in a forked child would wait for its old team forever."""

    def __init__(self) -> None:
        self._may_exist = False
        self._lost_by: int | None = None
        os.register_at_fork(after_in_child=self._lose)

    def size(self, threads: int) -> int:
        """The number of threads for a model that this thread opens, if ``threads`` are wanted."""
        self._may_exist = True
        return min(threads, 1) if self._lost_by == get_ident() else threads

    def _lose(self) -> None:
        if self._may_exist:
            self._lost_by = get_ident()
            if (torch := sys.modules.get("torch")) is not None:
                # Torch operators may be steps of a model, and share its threads.
                torch.set_num_threads(1)


_teams = _Teams()


class OpenModel:
    """One open model: its weights are bound, and it is ready to run."""

    def __init__(
        self,
        library: NativeLibrary,
        weights: Mapping[str, Tensor | Weight],
        fallback: FallbackFunction | None = None,
        *,
        threads: int = 0,
    ):
        self.library = library
        packed = pack_tensors(list(weights.values()))
        tensors = (CTensor * packed.length).from_buffer_copy(packed.content) if weights else ()
        named = [_NamedTensor(name.encode(), tensor) for name, tensor in zip(weights, tensors, strict=True)]
        self._weights = (_NamedTensor * len(named))(*named)
        self._owners = packed.owners
        self._failures: dict[int, BaseException] = {}
        self._fallback = _FALLBACK(self._guard(fallback)) if fallback else _FALLBACK()
        options = _OpenOptions(
            library.version, _teams.size(threads), self._weights, len(weights), None, self._fallback, None
        )
        self.handle, self._run = ctypes.c_void_p(), library.handle.precast_run
        library.check(library.handle.precast_open(ctypes.byref(options), ctypes.byref(self.handle)))

    def _guard(self, fallback: FallbackFunction) -> Callable[..., int]:
        def call(_: None, entry: int, step: int, *arrays: Any) -> int:
            inputs, input_count, outputs, output_count, sizes, size_count = arrays
            try:
                fallback(entry, step, inputs[:input_count], outputs[:output_count], sizes[:size_count])
            except BaseException as problem:  # noqa: BLE001
                # Exceptions must not propagate through C; `run` raises it on the other side.
                self._failures[get_ident()] = problem
                return 1
            return 0

        return call

    def descriptions(self) -> list[str]:
        """Each entry's description as JSON text."""
        count, text = ctypes.c_size_t(), ctypes.c_char_p()
        self.library.check(self.library.handle.precast_entry_count(self.handle, ctypes.byref(count)))
        texts = []
        for number in range(count.value):
            self.library.check(self.library.handle.precast_entry_json(self.handle, number, ctypes.byref(text)))
            assert text.value is not None
            texts.append(text.value.decode())
        return texts

    def infer(self, entry: int, inputs: PackedTensors, outputs: ctypes.Array[CTensor]) -> None:
        function = self.library.handle.precast_infer
        status = function(self.handle, entry, inputs.content, inputs.length, outputs, len(outputs))
        self.library.check(status)

    def run(self, entry: int, inputs: PackedTensors, outputs: PackedTensors) -> None:
        status = self._run(self.handle, entry, inputs.content, inputs.length, outputs.content, outputs.length)
        if status == 0:
            return
        if get_ident() in self._failures:
            raise self._failures.pop(get_ident())
        self.library.check(status)

    def state_names(self) -> tuple[str, ...]:
        count, text = ctypes.c_size_t(), ctypes.c_char_p()
        self.library.check(self.library.handle.precast_state_count(self.handle, ctypes.byref(count)))
        names = []
        for number in range(count.value):
            self.library.check(self.library.handle.precast_state_name(self.handle, number, ctypes.byref(text)))
            names.append((text.value or b"").decode())
        return tuple(names)

    def describe_state(self, name: str) -> CTensor:
        """The layout of a tensor of the state; it owns the arrays that it points to."""
        numbers = ctypes.c_int64 * MAX_RANK
        tensor = CTensor(shape=numbers(), strides=numbers())
        status = self.library.handle.precast_describe_state(self.handle, name.encode(), ctypes.byref(tensor))
        self.library.check(status)
        return tensor

    def read_state(self, name: str, target: PackedTensors) -> None:
        status = self.library.handle.precast_read_state(self.handle, name.encode(), target.content)
        self.library.check(status)

    def write_state(self, name: str, source: PackedTensors) -> None:
        status = self.library.handle.precast_write_state(self.handle, name.encode(), source.content)
        self.library.check(status)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.handle.precast_close(self.handle)
