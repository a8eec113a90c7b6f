"""A store of results on disk, by cache keys.

The store can only make things faster: an entry that cannot be read is a miss, an entry that cannot be written is not
stored, and either is warned about once. Threads and processes may use one folder at the same time: users share a file
lock, and evicting or clearing takes it exclusively. The system releases the lock of a process that dies. When the store
is full, the least recently used entries are evicted.
"""

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from precast.cache.entries import (
    DamagedEntry,
    Entry,
    all_entries,
    candidates,
    leftovers,
    read_intact,
    remove,
    room_for,
    write_entry,
)
from precast.cache.folder import check_private, make_private, warn_of_cache
from precast.cache.partial import new_scratch_folder
from precast.errors import CacheError
from precast.options import Options

if TYPE_CHECKING:
    from precast.cache.entries import StoreInfo


def choose_evicted(entries: Iterable[Entry], most: int) -> list[Entry]:
    """The entries to remove so that the others take at most ``most`` bytes.

    If any must go, an eighth of the space is freed, so that the next few writes need not scan the store again.
    """
    by_use = sorted(entries, key=lambda entry: (entry.used, entry.path))
    total = sum(entry.size for entry in by_use)
    if total <= most:
        return []
    evicted: list[Entry] = []
    for entry in by_use:
        if total <= most * 7 // 8:
            break
        evicted.append(entry)
        total -= entry.size
    return evicted


_PAUSE_SECONDS = 0.005


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """While active, hold the lock shared; waits for an exclusive holder, which is never long."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(path: Path, *, patience: float = 0.0) -> Iterator[bool]:
    """While active, hold the lock exclusively; yields False if it was not free within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    with _opened(path) as descriptor:
        while not (owned := _try_alone(descriptor)) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        yield owned


def _try_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_log = logging.getLogger("precast.cache")

# The version of the layout on disk: each version has its own folder.
_FOLDER = "store-1"
_PATIENCE_TO_CLEAR = 30.0


class EntryName(NamedTuple):
    """The name of an entry; its file ends with ``suffix``."""

    kind: str
    key: str
    suffix: str


class Store:
    """Entries under ``directory``, of at most ``limit`` bytes in total.

    An entry has a kind (a word, such as ``graphs``) and a key made by ``content_key``. The limit holds while up
    to eight processes write at once; more may exceed it until the next write.
    """

    def __init__(self, directory: Path, *, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._folder = directory / _FOLDER
        self._lock = self._folder / "lock"
        self._is_refused = False
        self._accounts = threading.Lock()
        # What this process may still write before it scans the store again.
        self._allowance = 0
        self._is_overdue = False
        self._hits = self._misses = 0
        self._has_warned = False
        self._noted: set[EntryName] | None = None

    def get(self, kind: str, key: str) -> bytes | None:
        """The data stored under the key; None if there are none."""
        found = self._find(kind, key)
        return None if found is None else found[1]

    def put(self, kind: str, key: str, data: bytes, *, suffix: str = "") -> None:
        """Store ``data`` under the key, if possible."""
        self._keep(kind, key, data, suffix=suffix)

    @contextmanager
    def noted(self, names: set[EntryName]) -> Iterator[None]:
        """While active, entries that this process finds or stores are added to ``names``."""
        before, self._noted = self._noted, names
        try:
            yield
        finally:
            self._noted = before

    def file(self, kind: str, key: str, make: Callable[[Path], None], *, suffix: str = "") -> Path:
        """A file that ``make`` wrote, now or earlier.

        If it cannot be stored, it lives as long as the process. Others may evict it: use it inside ``held()``.
        """
        found = self._find(kind, key)
        if found is not None:
            return found[0]
        # Made outside of the store, so that a failing store does not prevent it.
        scratch = new_scratch_folder()
        made = scratch / f"{key}{suffix}"
        kept = None
        is_needed = False
        try:
            make(made)
            kept = self._keep(kind, key, made.read_bytes(), suffix=suffix)
            is_needed = kept is None
        finally:
            if not is_needed:
                shutil.rmtree(scratch, ignore_errors=True)
        return kept or made

    def discard(self, kind: str, key: str) -> None:
        """Remove the entries stored under the key."""
        if self._check_usable():
            with self._carrying_on():
                for path in candidates(self._folder, kind, key):
                    remove(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While active, in any process, no entry is evicted or cleared."""
        with ExitStack() as stack:
            if self._check_usable():
                with self._carrying_on():
                    stack.enter_context(shared(self._lock))
            yield
        if self._is_overdue:
            with self._carrying_on():
                self._make_room(0)

    def info(self) -> "StoreInfo":
        """A summary of the store. Raises CacheError if its folder must not be used."""
        from precast.cache.entries import StoreInfo, summarize

        entries = all_entries(self._folder) if self._is_there() else ()
        return StoreInfo(self.directory, self.limit, summarize(entries), self._hits, self._misses)

    def clear(self) -> "StoreInfo":
        """Remove every entry; returns a summary of what there was."""
        before = self.info()
        if self._is_there():
            with alone(self._lock, patience=_PATIENCE_TO_CLEAR) as owned:
                if not owned:
                    raise CacheError(
                        f"the cache in {self.directory} is in use",
                        why=f"a program has been reading or writing files there for {_PATIENCE_TO_CLEAR:.0f} seconds",
                        fix="wait for programs that compile to finish, then try again",
                    )
                self._trim(0)
        return before

    def _find(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        found = None
        if self._check_usable():
            with self._carrying_on():
                found = next(self._intact(kind, key), None)
        with self._accounts:
            self._hits += found is not None
            self._misses += found is None
        if found is not None:
            self._note(kind, key, found[0])
        return found

    def _note(self, kind: str, key: str, path: Path) -> None:
        if self._noted is not None:
            # The digest is between the key and the suffix.
            self._noted.add(EntryName(kind, key, "".join(path.suffixes[1:])))

    def _intact(self, kind: str, key: str) -> Iterator[tuple[Path, bytes]]:
        for path in candidates(self._folder, kind, key):
            try:
                data = read_intact(path, kind, key, most=self.limit)
            except FileNotFoundError:
                continue  # evicted since it was listed
            except DamagedEntry as damage:
                remove(path)
                message = f"dropped the damaged cache entry {path}: {damage}; what it held is made again"
                warn_of_cache(message)
                continue
            with suppress(OSError):
                os.utime(path)
            yield path, data

    def _keep(self, kind: str, key: str, data: bytes, *, suffix: str = "") -> Path | None:
        size = room_for(len(data))
        if size > self.limit:
            _log.info("not kept, since %d bytes are more than the whole cache may take: %s %s", size, kind, key)
            return None
        if self._check_usable():
            with self._carrying_on():
                self._make_room(size)
                with shared(self._lock):
                    path = write_entry(self._folder, kind, key, data, suffix=suffix)
                    self._note(kind, key, path)
                    return path
        return None

    def _make_room(self, size: int) -> None:
        with self._accounts:
            if 0 < size <= self._allowance:
                self._allowance -= size
                return
            self._allowance = 0
            # Without the exclusive lock, exceed the limit rather than wait; a later write evicts.
            with alone(self._lock) as owned:
                self._is_overdue = not owned
                if owned:
                    self._allowance = (self.limit - size - self._trim(self.limit - size)) // 8

    def _trim(self, most: int) -> int:
        """Evict down to at most ``most`` bytes; returns the remaining size. Requires the exclusive lock."""
        for path in leftovers(self._folder):
            remove(path)
        entries = list(all_entries(self._folder))
        evicted = choose_evicted(entries, most)
        for entry in evicted:
            _log.info("evicted %s", entry.path)
            remove(entry.path)
        return sum(entry.size for entry in entries) - sum(entry.size for entry in evicted)

    def _is_there(self) -> bool:
        there = self._folder.exists()
        if there:
            check_private(self.directory)
            check_private(self._folder)
        return there

    def _check_usable(self) -> bool:
        """Whether the folder can be used; it is created if missing. Once refused, it stays refused."""
        is_usable = False
        if not self._is_refused:
            with self._carrying_on():
                make_private(self.directory)
                make_private(self._folder)
                is_usable = True
            self._is_refused = not is_usable
        return is_usable

    @contextmanager
    def _carrying_on(self) -> Iterator[None]:
        """Suppress errors of the folder, and warn once: work continues without the cache."""
        try:
            yield
        except (OSError, CacheError) as error:
            with self._accounts:
                is_news, self._has_warned = not self._has_warned, True
            if is_news:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                message = f"going on without the cache in {self.directory}: {why}"
                warn_of_cache(message)


@cache
def _store(directory: Path, limit: int) -> Store:
    return Store(directory, limit=limit)


def open_store(options: Options) -> Store:
    """The store that the options name; one object per process."""
    return _store(options.cache_directory, options.cache_bytes)
