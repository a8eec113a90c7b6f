"""A store of results on disk, keyed by what decides them.

The store can make things faster, never wrong or impossible: what it cannot read, it does not have; what it cannot
write, it does not keep; and it says so once. Threads and processes may use one folder at the same time.

Which entries go when the store is full: those whose last use is the longest ago.

A lock between processes: many may use the store at once, but who removes from it is alone.

The system frees the lock of a process that dies.
"""

import fcntl
import logging
import os
import shutil
import threading
import time
import warnings
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
from precast.cache.folder import CacheWarning, check_private, make_private
from precast.cache.partial import new_scratch_folder
from precast.errors import CacheError
from precast.options import Options

if TYPE_CHECKING:
    from precast.cache.entries import StoreInfo


def choose_evicted(entries: Iterable[Entry], most: int) -> list[Entry]:
    """The entries to remove so that the others take at most ``most`` bytes.

    Once any must go, an eighth of the room is freed, so that the next few writes need not look again.
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
    """While active, nobody is alone; waits for whoever is, which is never long."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(path: Path, *, patience: float = 0.0) -> Iterator[bool]:
    """While active, nobody else is; yields False if others were there for all of ``patience`` seconds."""
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

# Stands for how entries are laid out: another layout gets another folder, and neither reads the other's.
_FOLDER = "store-1"
_PATIENCE_TO_CLEAR = 30.0


class EntryName(NamedTuple):
    """What an entry is called: its file ends with ``suffix``."""

    kind: str
    key: str
    suffix: str


class Store:
    """Entries under ``directory``, taking at most ``limit`` bytes of it.

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
        # What this process may still write before it looks again at what all processes have written.
        self._allowance = 0
        self._is_overdue = False
        self._hits = self._misses = 0
        self._is_told = False
        self._noted: set[EntryName] | None = None

    def get(self, kind: str, key: str) -> bytes | None:
        """What is kept under the key, exactly as it was put; None if nothing is."""
        found = self._find(kind, key)
        return None if found is None else found[1]

    def put(self, kind: str, key: str, data: bytes, *, suffix: str = "") -> None:
        """Keep ``data`` under the key, if it can be done."""
        self._keep(kind, key, data, suffix=suffix)

    @contextmanager
    def noted(self, names: set[EntryName]) -> Iterator[None]:
        """While active, what this process finds or keeps is added to ``names``."""
        before, self._noted = self._noted, names
        try:
            yield
        finally:
            self._noted = before

    def file(self, kind: str, key: str, make: Callable[[Path], None], *, suffix: str = "") -> Path:
        """A file that ``make`` wrote, now or earlier.

        If it cannot be kept, it lives as long as the process. Others may evict it: use it inside ``held()``.
        """
        found = self._find(kind, key)
        if found is not None:
            return found[0]
        # Made outside of the store: a store that fails must not keep anyone from making it.
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
        """Forget what is kept under the key."""
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
        """What the store holds. Raises CacheError if its folder must not be used."""
        from precast.cache.entries import StoreInfo, summarize

        entries = all_entries(self._folder) if self._is_there() else ()
        return StoreInfo(self.directory, self.limit, summarize(entries), self._hits, self._misses)

    def clear(self) -> "StoreInfo":
        """Remove every entry, and tell what was there."""
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
            # The digest stands between the key and the suffix.
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
                warnings.warn(message, CacheWarning, stacklevel=2)
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
            # Whoever cannot be alone right now goes over the limit rather than wait; a later write makes up for it.
            with alone(self._lock) as owned:
                self._is_overdue = not owned
                if owned:
                    self._allowance = (self.limit - size - self._trim(self.limit - size)) // 8

    def _trim(self, most: int) -> int:
        """Evict until at most so many bytes are taken; give how many are. Only for one who is alone."""
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
        """Whether the folder can be used, made anew if someone deleted it; once refused, it stays so."""
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
        """Where the folder fails us, work goes on without it."""
        try:
            yield
        except (OSError, CacheError) as error:
            with self._accounts:
                is_news, self._is_told = not self._is_told, True
            if is_news:
                message = f"going on without the cache in {self.directory}: {error}"
                warnings.warn(message, CacheWarning, stacklevel=2)


@cache
def _store(directory: Path, limit: int) -> Store:
    return Store(directory, limit=limit)


def open_store(options: Options) -> Store:
    """The store that the options name: one object for all who ask in this process."""
    return _store(options.cache_directory, options.cache_bytes)
