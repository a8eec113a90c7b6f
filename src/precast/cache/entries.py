"""Cache entries as files: each one is complete and verified, or missing.

::

    graphs/4f/4f…e1.9b…07        kind / start of key / key . digest suffix
    libraries/a0/a0…3c.55…d2.so
    partial/                     what is being written
    lock

The name contains the digest, so that an entry is one plain file that other programs can use unchanged. The digest
covers kind and key too: an entry under a wrong name counts as damaged.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precast.cache.folder import check_private, make_private

PARTIAL = "partial"
_BLOCK_BYTES = 4096
_ABOUT_THE_ENTRY = (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM)
"""The error numbers for links, sockets, and files that their owner must not read."""


class DamagedEntry(Exception):  # noqa: N818
    """A file in the place of an entry whose contents do not match its name."""


@dataclass(frozen=True)
class Entry:
    """One entry's file metadata: its size on disk, and the time of its last use, in nanoseconds."""

    path: str
    kind: str
    size: int
    used: int


def room_for(size: int) -> int:
    """The size on disk of so many bytes: whole blocks, so that many small entries count fully."""
    return max(1, -(-size // _BLOCK_BYTES)) * _BLOCK_BYTES


def candidates(folder: Path, kind: str, key: str) -> list[Path]:
    """The files with the entry's key; several if two writers produced different, equally valid results."""
    shard = _shard(folder, kind, key)
    try:
        for inner in (shard.parent, shard):
            check_private(inner)
        names = os.listdir(shard)
    except FileNotFoundError:
        return []
    return [shard / name for name in sorted(names) if name.startswith(f"{key}.")]


def read_intact(path: Path, kind: str, key: str, *, most: int) -> bytes:
    """The contents of the entry, of at most ``most`` bytes.

    Raises DamagedEntry, or an OSError that is not about the entry: it has just been removed, for example, or this
    process has too many open files.
    """
    try:
        # Does not follow links, and does not block on pipes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABOUT_THE_ENTRY:
            raise DamagedEntry(f"it cannot be read: {error.strerror}") from error
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedEntry("it is not a regular file")
        if facts.st_size > most:
            raise DamagedEntry(f"it has {facts.st_size} bytes, more than may be kept")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
    finally:
        os.close(descriptor)
    if path.name.split(".")[1] != _digest(kind, key, data):
        raise DamagedEntry("its content is not what was written")
    return data


def write_entry(folder: Path, kind: str, key: str, data: bytes, *, suffix: str = "") -> Path:
    """Add an entry atomically: readers see all of it or nothing, even after a crash of the machine."""
    shard = _shard(folder, kind, key)
    for needed in (folder / PARTIAL, shard.parent, shard):
        make_private(needed)
    descriptor, partial = tempfile.mkstemp(dir=folder / PARTIAL)  # mkstemp makes it accessible only to the owner
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # The folder is not synced: an entry lost in a crash is recomputed, but a partial one would be damaged.
            os.fsync(descriptor)
        path = shard / f"{key}.{_digest(kind, key, data)}{suffix}"
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return path


def all_entries(folder: Path) -> Iterator[Entry]:
    """Every entry, in no particular order, without reading any."""
    for kind in _folders(folder):
        if kind.name != PARTIAL:
            for shard in _folders(kind):
                yield from _entries_in(shard, kind.name)


def leftovers(folder: Path) -> list[Path]:
    """Unfinished files. Under the exclusive lock nobody writes, so they were left by killed writers."""
    partial = folder / PARTIAL
    return list(partial.iterdir()) if partial.is_dir() else []


def remove(name: str | Path) -> None:
    """Remove a file or folder, if it exists."""
    path = Path(name)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _entries_in(shard: Path, kind: str) -> Iterator[Entry]:
    with os.scandir(shard) as found:
        for item in found:
            try:
                facts = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield Entry(item.path, kind, room_for(facts.st_size), facts.st_mtime_ns)


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []


def _shard(folder: Path, kind: str, key: str) -> Path:
    assert re.fullmatch(r"(?!partial$)[a-z_]+", kind), f"{kind!r} is not a kind of entry"
    assert re.fullmatch(r"[0-9a-f]{64}", key), f"{key!r} was not made by content_key"
    return folder / kind / key[:2]


def _digest(kind: str, key: str, data: bytes) -> str:
    digest = hashlib.sha256(f"{kind}/{key}\n".encode())
    digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class KindInfo:
    """The entries of one kind: their number, their size on disk, and their last use, in seconds since 1970."""

    kind: str
    entries: int
    bytes: int
    last_used: float


@dataclass(frozen=True)
class StoreInfo:
    """The contents of a store; ``hits`` and ``misses`` are those of this process."""

    directory: Path
    limit: int
    kinds: tuple[KindInfo, ...] = ()
    hits: int = 0
    misses: int = 0

    @property
    def entries(self) -> int:
        return sum(kind.entries for kind in self.kinds)

    @property
    def bytes(self) -> int:
        return sum(kind.bytes for kind in self.kinds)


def summarize(entries: Iterable[Entry]) -> tuple[KindInfo, ...]:
    """Entries counted by kind, sorted by name."""
    by_kind: dict[str, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    return tuple(
        KindInfo(kind, len(found), sum(e.size for e in found), max(e.used for e in found) / 1e9)
        for kind, found in sorted(by_kind.items())
    )
