"""Temporary files and folders with a lock, so that those left by killed processes can be recognized and removed.

The system releases the lock of a process that dies; the next process that writes to the same place removes what it
left. The same holds for scratch folders, which live as long as their process.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".partial"
_LOCK = "owner.lock"


@contextmanager
def partial_file(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new hidden file beside ``target``, open for writing; removed at the end unless it was moved away."""
    prefix = f".{target.name[:100]}."
    _remove_abandoned(target.parent, prefix)
    handle = -1
    while handle < 0:
        made, name = tempfile.mkstemp(prefix=prefix, suffix=_SUFFIX, dir=target.parent)
        handle = _locked(made, Path(name))
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            yield Path(name), file
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def partial_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, removed at the end; also removes those left by killed writers."""
    folder, handle = locked_folder(prefix, parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor of its lock, which is held while the descriptor is open."""
    _remove_abandoned(parent, prefix)
    handle = -1
    while handle < 0:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=parent))
        lock = folder / _LOCK
        handle = _locked(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), lock)
    return folder, handle


def replace_together(moves: Sequence[tuple[Path, Path]]) -> None:
    """Move each file to its target, in order; if one cannot be moved, the earlier targets are restored."""
    before = {target: _second_name(target, Path(f"{source}.before")) for source, target in moves}
    moved: list[Path] = []
    try:
        for source, target in moves:
            os.replace(source, target)
            moved.append(target)
    except OSError:
        for target in moved:
            second = before[target]
            target.unlink() if second is None else os.replace(second, target)
        raise
    finally:
        for second in before.values():
            if second is not None:
                second.unlink(missing_ok=True)


def _second_name(path: Path, second: Path) -> Path | None:
    """Hard-link a file to ``second``, if the file exists."""
    try:
        os.link(path, second)
    except FileNotFoundError:
        return None
    return second


def _locked(handle: int, path: Path) -> int:
    """The handle, once it holds the lock; -1 if another process has removed the new file as abandoned meanwhile."""
    with suppress(OSError):  # on file systems without locks, leftovers stay
        fcntl.flock(handle, fcntl.LOCK_EX)
    if path.exists():
        return handle
    os.close(handle)
    return -1


def _remove_abandoned(parent: Path, prefix: str) -> None:
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX):
                _remove_if_abandoned(Path(entry.path), is_folder=entry.is_dir(follow_symlinks=False))


def _remove_if_abandoned(path: Path, *, is_folder: bool) -> None:
    # A folder without a lock file is just being created.
    with suppress(OSError):
        handle = os.open(path / _LOCK if is_folder else path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_uid != os.geteuid():
                return
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink()
        finally:
            os.close(handle)


def new_scratch_folder() -> Path:
    """An empty folder that is removed when the process ends."""
    return Path(tempfile.mkdtemp(dir=_scratch_of(os.getpid())))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder that is removed at the end."""
    folder = new_scratch_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _scratch_of(process: int) -> Path:
    # The lock is never released: it shows other processes that this one, or a child of it, is alive.
    folder, _ = locked_folder("precast-", Path(tempfile.gettempdir()))
    atexit.register(_remove_own, folder, process)
    return folder


def _remove_own(folder: Path, process: int) -> None:
    # A forked child inherits the registration, and must not remove its parent's files.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
