"""A model's file: manifest, programs, native code and weights, written and opened."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from precast.artifact.archive import Content, check_member, read_archive, write_archive
from precast.artifact.manifest import FileRecord, Manifest, StateRecord, manifest_text, parse_manifest
from precast.artifact.schema import Json, damaged
from precast.artifact.signatures import SUFFIX
from precast.artifact.weights import Weight, is_addressable, read_weights, weight_carrier, weight_pieces
from precast.errors import ArtifactError, MissingFileError

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
SAMPLES = "samples.safetensors"
MAX_MANIFEST = 64 * 1024 * 1024
MAX_CODE = 1024 * 1024 * 1024


def native_member(target: str) -> str:
    """The member with a target's code: a library, or programs and cubins."""
    return f"native/{target.replace(':', '-')}/model.{'gpu' if target.startswith('cuda:') else 'so'}"


class NativeCode(NamedTuple):
    """A target's code, and the features that it requires."""

    library: bytes
    features: tuple[str, ...] = ()


class Package(NamedTuple):
    """An open file: the manifest is checked, members are checked on access."""

    manifest: Manifest
    members: Mapping[str, memoryview]

    def checked(self, name: str) -> bytes:
        """A copy of a member, checked after copying: what is returned is what was checked."""
        record = self._sized(name)
        content = bytes(self.members[name])
        check_member(name, content, record.size, record.sha256)
        return content

    def code(self, name: str) -> bytes:
        """A member with code, checked after copying."""
        if self._record(name).size > MAX_CODE:
            raise damaged(f"{name} is too large", f"at most {MAX_CODE} bytes are allowed")
        return self.checked(name)

    def tensors(self, name: str) -> dict[str, Weight]:
        """A member's tensors, mapped in place. Their layout is checked here, their content by `verify`."""
        if name not in self.members:
            return {}
        self._sized(name)
        return read_weights(self.members[name])

    def state(self) -> dict[str, Weight]:
        """The model's state, mapped in place; every tensor is inside its storage."""
        stored = self.tensors(WEIGHTS)
        return {name: _placed(name, record, stored) for name, record in self.manifest.state.items()}

    @property
    def manifest_bytes(self) -> bytes:
        """The bytes of the manifest in the file, which are what is signed."""
        return bytes(self.members[MANIFEST])

    def verify(self, *names: str) -> None:
        """Check the hash of these members, or of all."""
        for name in names or self.manifest.files:
            record = self._record(name)
            check_member(name, self.members[name], record.size, record.sha256)

    def _sized(self, name: str) -> FileRecord:
        record = self._record(name)
        if len(self.members[name]) != record.size:
            raise damaged(f"{name} has {len(self.members[name])} bytes", f"the manifest says {record.size}")
        return record

    def _record(self, name: str) -> FileRecord:
        if name not in self.manifest.files or name not in self.members:
            raise damaged(f"the file has no {name}", "the manifest and the archive must both name it")
        return self.manifest.files[name]


def _placed(name: str, record: StateRecord, stored: Mapping[str, Weight]) -> Weight:
    """The tensor that a record describes, over the memory of its stored weight."""
    if record.storage not in stored:
        raise damaged(f"the state {name!r} is stored in {record.storage!r}", f"{WEIGHTS} holds no such tensor")
    weight = stored[record.storage]
    flat = weight.carrier.reshape(-1).view(np.uint8) if weight.carrier.size else np.empty(0, np.uint8)
    carrier = weight_carrier(record.dtype)
    last = record.offset + sum((size - 1) * step for size, step in zip(record.shape, record.strides, strict=True))
    is_empty = 0 in record.shape
    if not is_addressable(record.shape, carrier.itemsize):
        raise damaged(f"the state {name!r} is huge", f"its shape is {list(record.shape)}")
    if not is_empty and (last + 1) * carrier.itemsize > flat.nbytes:
        raise damaged(f"the state {name!r} ends outside its storage", f"the storage has {flat.nbytes} bytes")
    if is_empty:
        return Weight(record.dtype, np.empty(record.shape, carrier))
    elements = flat[: flat.nbytes // carrier.itemsize * carrier.itemsize].view(carrier)[record.offset :]
    strides = [step * carrier.itemsize for step in record.strides]
    placed = np.lib.stride_tricks.as_strided(elements, record.shape, strides, writeable=False)
    return Weight(record.dtype, placed)


def write_package(
    path: Path,
    *,
    entries: Sequence[Json],
    code: Mapping[str, NativeCode],
    weights: Mapping[str, Weight],
    state: Mapping[str, Json] | None = None,
    members: Mapping[str, Content] | None = None,
    libraries: Sequence[str] = (),
    made_with: Mapping[str, str] | None = None,
    sign: Callable[[bytes], bytes] | None = None,
) -> Path:
    """Write a model's file, and the signature that `sign` makes of its manifest beside it.

    `entries` are made by ``packed_entry``, `code` is the native code for each target. `state` locates the tensors
    of the model in `weights`; by default, each weight is a tensor of the same name.
    """
    content: dict[str, Content] = dict(members or {})
    content |= {native_member(target): code[target].library for target in sorted(code)}
    if weights:
        content[WEIGHTS] = weight_pieces(weights)
    targets: list[Json] = [
        {"name": name, "file": native_member(name), "features": list(code[name].features)} for name in sorted(code)
    ]
    if state is None:
        state = {name: whole_weight(name, weight) for name, weight in weights.items()}
    files = {name: file_record(pieces) for name, pieces in content.items()}
    text = manifest_text(files, entries=entries, state=state, targets=targets, libraries=libraries, made_with=made_with)
    write_archive(path, {MANIFEST: text, **content}, beside={SUFFIX: sign(text)} if sign else {})
    if sign is None:
        # An old signature no longer applies.
        Path(f"{path}{SUFFIX}").unlink(missing_ok=True)
    return path


def whole_weight(name: str, weight: Weight) -> Json:
    """The record of a state tensor that is all of one stored weight."""
    strides: list[Json] = []
    step = 1
    for size in reversed(weight.carrier.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    shape: list[Json] = list(weight.carrier.shape)
    return {"storage": name, "dtype": weight.dtype, "shape": shape, "strides": strides, "offset": 0}


def file_record(content: Content) -> FileRecord:
    """Size and hash of a member's content."""
    pieces = [content] if isinstance(content, bytes | memoryview) else content
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return FileRecord(sum(memoryview(piece).nbytes for piece in pieces), digest.hexdigest())


@contextmanager
def naming_file(source: object) -> Iterator[None]:
    """While active, errors about the content of a file that was given by path name this path."""
    try:
        yield
    except ArtifactError as error:
        path = os.fsdecode(source) if isinstance(source, str | os.PathLike) else ""
        if error.at is not None or path in error.what:
            raise
        raise type(error)(error.what, why=error.why, fix=error.fix, at=path) from error.__cause__


def open_package(source: Path | bytes | memoryview, *, writable: bool = False, copy: bool = False) -> Package:
    """Map a file, or take its bytes, and check its structure and manifest.

    Memory that is `writable` is private to this process: the file does not change. With `copy`, the file is read once,
    here: later changes to it do not matter.
    """
    with naming_file(source):
        return package_of(file_bytes(source, writable=writable, copy=copy))


def file_bytes(source: Path | bytes | memoryview, *, writable: bool = False, copy: bool = False) -> memoryview:
    """The bytes that `open_package` parses: the file, mapped or read, or the bytes themselves."""
    if isinstance(source, Path):
        return _read(source) if copy else _mapped(source, mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
    return memoryview(bytearray(source) if writable else source)


def package_of(data: memoryview) -> Package:
    """The file with these bytes, its structure and manifest checked."""
    members = read_archive(data)
    if MANIFEST not in members or len(members[MANIFEST]) > MAX_MANIFEST:
        raise damaged("the file has no manifest", f"{MANIFEST} is missing or too large")
    package = Package(parse_manifest(bytes(members[MANIFEST])), members)
    unknown, missing = (
        set(members) - set(package.manifest.files) - {MANIFEST},
        set(package.manifest.files) - set(members),
    )
    if unknown:
        raise damaged(f"the file holds {', '.join(sorted(unknown))}", "the manifest does not name it")
    if missing:
        raise damaged(f"the file has no {', '.join(sorted(missing))}", "the manifest names it")
    return package


def _mapped(path: Path, access: int) -> memoryview:
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=access))
    except (OSError, ValueError) as problem:
        raise _unreadable(path, _reason(problem), _kind_for(problem)) from problem


def _read(path: Path) -> memoryview:
    """The file's bytes, in writable memory."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise _unreadable(path, f"it has {size} bytes, more than this machine has memory; copy=False maps it")
            # One byte more than its size: a file that grows meanwhile is detected as damaged.
            data = bytearray(size + 1)
            length = file.readinto(data)
    except ArtifactError:
        raise
    except (OSError, ValueError, MemoryError) as problem:
        raise _unreadable(path, _reason(problem), _kind_for(problem)) from problem
    return memoryview(data)[:length]


def _reason(problem: Exception) -> str:
    """The message of an error, without the number and path that the system's errors repeat."""
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def _kind_for(problem: Exception) -> type[ArtifactError]:
    return MissingFileError if isinstance(problem, FileNotFoundError) else ArtifactError


def _unreadable(path: Path, why: str, kind: type[ArtifactError] = ArtifactError) -> ArtifactError:
    return kind(f"{path} cannot be read", why=why, fix="check the path and the file")
