"""A zip whose members are stored uncompressed, each aligned to 64 bytes, so that it can be mapped in place."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from precast.artifact.schema import damaged
from precast.cache.partial import partial_file, replace_together
from precast.errors import ArtifactError, FileWriteError

ALIGNMENT = 64
MAX_MEMBERS = 1000
MAX_TORCH_MEMBERS = 1_000_000
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_PADDING_FIELD = 0x5043  # a private extra field that only fills space
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,4}")
_TORCH_NAME = re.compile(r"[^/\\\x00-\x1f]+(/[^/\\\x00-\x1f]+)*")
_SIGNATURE = b"PK\x03\x04"
_LARGE = 2**31
_TIME = (1980, 1, 1, 0, 0, 0)


Content = bytes | memoryview | Sequence[bytes | memoryview]
"""The content of a member: one piece, or several that are concatenated without being joined in memory."""


def write_archive(path: Path, members: Mapping[str, Content], *, beside: Mapping[str, bytes] | None = None) -> None:
    """Write all members, in this order. The file appears complete or not at all; equal members make equal files.

    Files `beside` it, by the suffix that their names add to its own, appear together with it.
    """
    check_folder(path)
    with _reported_failures(path), ExitStack() as stack:
        moves: list[tuple[Path, Path]] = []
        for suffix, content in (beside or {}).items():
            target = Path(f"{path}{suffix}")
            partial, file = stack.enter_context(partial_file(target))
            file.write(content)
            _finish(file)
            moves.append((partial, target))
        partial, file = stack.enter_context(partial_file(path))
        write_members(file, members)
        _finish(file)
        replace_together([*moves, (partial, path)])


def write_file(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write the pieces one after the other. The file appears complete or not at all."""
    check_folder(path)
    with _reported_failures(path), partial_file(path) as (partial, file):
        file.writelines(pieces)
        _finish(file)
        os.replace(partial, path)


def check_folder(path: Path) -> None:
    """Refuse a path in a folder that cannot be written to, before any work is done."""
    with _reported_failures(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        folder = path.absolute().parent
        folder.stat()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


@contextmanager
def _reported_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise FileWriteError(
            f"{path} cannot be written",
            why=f"{problem.strerror or problem} ({problem.filename or path})",
            fix="choose a path in an existing folder that you can write to; an existing file was left unchanged",
        ) from problem


def _finish(file: BinaryIO) -> None:
    """Flush everything to disk."""
    file.flush()
    os.fsync(file.fileno())


def write_members(file: BinaryIO, members: Mapping[str, Content]) -> None:
    """Write the archive to an open seekable file, from its current position."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            assert _SAFE_NAME.fullmatch(name), f"{name!r} is not a valid name for a member"
            pieces = [content] if isinstance(content, (bytes, memoryview)) else content
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system, info.external_attr = 3, 0o644 << 16
            info.file_size = sum(memoryview(piece).nbytes for piece in pieces)
            # A field of zeros pads the data to the next multiple; its own header takes 4 bytes, sizes over 4 GB 20.
            is_large = info.file_size > _LARGE
            start = file.tell() + _LOCAL_HEADER.size + len(name) + 4 + (20 if is_large else 0)
            padding = -start % ALIGNMENT
            info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=is_large) as member:
                for piece in pieces:
                    member.write(piece)


def is_member_name(name: str) -> bool:
    """Whether an archive may have a member of that name: a plain relative path."""
    return _SAFE_NAME.fullmatch(name) is not None


def read_archive(data: memoryview, *, is_torchs: bool = False) -> dict[str, memoryview]:
    """The members, as slices of `data`. Nothing is trusted: names, sizes, offsets and overlaps are checked.

    An archive that torch wrote has a member for each tensor, hidden members, and sizes after the data.
    """
    infos = _infos(data)
    most = MAX_TORCH_MEMBERS if is_torchs else MAX_MEMBERS
    if len(infos) > most:
        raise damaged(f"the archive has {len(infos)} members", f"at most {most} are allowed")
    if not is_torchs and any(info.filename.endswith("/data.pkl") for info in infos):
        raise ArtifactError(
            "the file was written by torch.save, and is not a package",
            why="it holds pickled objects, which Precast never loads",
            fix="read it with torch.load, then package the model: precast.package(model, args, path='model.precast')",
        )
    members: dict[str, memoryview] = {}
    end = 0
    for info in sorted(infos, key=lambda each: each.header_offset):
        start = _check_member(info, data, end, is_torchs=is_torchs)
        if info.filename in members:
            raise damaged(f"the archive has two members {info.filename!r}", "names must differ")
        end = start + info.file_size
        members[info.filename] = data[start:end]
    return members


def is_torch_archive(data: memoryview) -> bool:
    """Whether these are the bytes of an archive that torch wrote: its members are in a folder, named after the file."""
    return any(info.filename.endswith("/archive_format") for info in _infos(data))


def _infos(data: memoryview) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(_ReadOnly(data)) as archive:
            return archive.infolist()
    except (
        zipfile.BadZipFile,
        ValueError,
        struct.error,
        OverflowError,
        NotImplementedError,
        UnicodeDecodeError,
    ) as problem:
        if bytes(data[:4]) == b"\x7fELF":
            raise ArtifactError(
                "the file is a shared library, not a package",
                why="precast compile and precast.aot_compile write such files",
                fix="open it with precast.aot_load",
            ) from problem
        raise ArtifactError(
            "the file is not a Precast archive",
            why=f"{str(problem)[:1].lower()}{str(problem)[1:]}",
            fix="check that it is the right file, and that it was copied completely",
        ) from problem


def _check_member(info: zipfile.ZipInfo, data: memoryview, previous_end: int, *, is_torchs: bool) -> int:
    """The start of the member's bytes, once everything about it is checked."""
    name = info.filename
    if not (_TORCH_NAME if is_torchs else _SAFE_NAME).fullmatch(name):
        raise damaged(f"the archive has a member {name!r}", "that is not a plain relative path")
    allowed = 0x808 if is_torchs else 0x800
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ~allowed or info.compress_size != info.file_size:
        raise damaged(f"{name} is compressed or encrypted", "members must be stored as they are")
    header = data[info.header_offset : info.header_offset + _LOCAL_HEADER.size]
    if info.header_offset < previous_end or len(header) != _LOCAL_HEADER.size:
        raise damaged(f"{name} begins outside the file or inside another member", "its offset is wrong")
    fields: tuple[Any, ...] = _LOCAL_HEADER.unpack(header)
    signature, name_length, extra_length = fields[0], int(fields[-2]), int(fields[-1])
    name_start = info.header_offset + _LOCAL_HEADER.size
    start = name_start + name_length + extra_length
    if signature != _SIGNATURE or bytes(data[name_start : name_start + name_length]) != name.encode():
        raise damaged(f"{name} has a wrong local header", "it names another member")
    if start + info.file_size > len(data) or start % ALIGNMENT:
        raise damaged(f"{name} ends outside the file, or is not aligned", "its size or place is wrong")
    return start


def check_member(name: str, content: memoryview | bytes, size: int, sha256: str) -> None:
    """Compare with the manifest."""
    if len(content) != size:
        raise damaged(f"{name} has {len(content)} bytes", f"the manifest says {size}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise damaged(f"{name} is not what was packed", "its SHA-256 differs from the manifest's")


class _ReadOnly:
    """A minimal file for `zipfile`, over memory, without copying all of it."""

    def __init__(self, data: memoryview):
        self.data, self.position = data, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: len(self.data)}[whence]
        self.position = max(base + offset, 0)
        return self.position

    def read(self, count: int = -1) -> bytes:
        stop = len(self.data) if count < 0 else min(self.position + count, len(self.data))
        chunk = bytes(self.data[self.position : stop])
        self.position += len(chunk)
        return chunk

    def close(self) -> None:
        """Do nothing: the memory belongs to the caller."""
