"""Recycles memory of large results: fresh pages cost a training step more than many of its kernels.

One range of addresses is reserved once. A result is placed at the lowest address with room, so that, except for gaps,
no more is touched than is in use at a time; pages are kept when a result dies. Pages that have not been needed for a
while are returned to the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import cache
from threading import Lock, Thread

LARGE = 1 << 18
"""The smallest result, in bytes, that is worth the bookkeeping."""
_PAGE = 4096
_PATIENCE = 4096
"""The number of results after which pages that none of them used are returned."""
_POPULATE_WRITE = 23
_MANY_PAGES = 1 << 24
"""The smallest number of fresh bytes for which requesting all their pages at once pays."""

Block = ctypes.Array[ctypes.c_char]


class RecycledMemory:
    """Blocks of one range of addresses; each is returned when it is no longer referenced."""

    def __init__(self, capacity: int):
        # No memory is committed before it is used; older Pythons have no name for this flag.
        unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._range = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
        self._free = [(0, capacity)]
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = Lock()
        self._touched = self._recently_touched = self._taken = self._ready = 0

    @property
    def touched(self) -> int:
        """How many bytes may have pages."""
        return self._touched

    def take(self, size: int) -> Block | None:
        """A block of this size with undefined content; None if there is no room."""
        room = -(-size // _PAGE) * _PAGE
        with self._lock:
            self._collect()
            start = self._place(room)
            if start is None:
                return None
            self._note_use(start + room)
        block = (ctypes.c_char * size).from_buffer(self._range, start)
        # It may die in any thread, even in this one while the lock is held: so it is only recorded here.
        weakref.finalize(block, self._returned.append, (start, room)).atexit = False
        return block

    def make_ready(self, threads: int) -> None:
        """Have the system map pages for blocks that are about to be written: cheaper than one by one on first access.

        Where the system does not support the request, pages are mapped when they are touched.
        """
        with self._lock:
            start, stop = self._ready, self._touched
            if stop - start < _MANY_PAGES:
                return
            self._ready = stop
        share = -(-(stop - start) // threads // _PAGE) * _PAGE
        origin = ctypes.addressof(ctypes.c_char.from_buffer(self._range))
        parts = [(origin + begin, min(share, stop - begin), _POPULATE_WRITE) for begin in range(start, stop, share)]
        others = [Thread(target=_system_call(), args=part) for part in parts[1:]]
        for thread in others:
            thread.start()
        _system_call()(*parts[0])
        for thread in others:
            thread.join()

    def _place(self, room: int) -> int | None:
        for position, (start, size) in enumerate(self._free):
            if size >= room:
                self._free[position : position + 1] = [(start + room, size - room)] if size > room else []
                return start
        return None

    def _collect(self) -> None:
        while self._returned:
            start, size = self._returned.popleft()
            position = bisect_left(self._free, (start, 0))
            if position < len(self._free) and self._free[position][0] == start + size:
                size += self._free.pop(position)[1]
            if position and sum(self._free[position - 1]) == start:
                position -= 1
                start, before = self._free.pop(position)
                size += before
            self._free.insert(position, (start, size))

    def _note_use(self, end: int) -> None:
        self._touched = max(self._touched, end)
        self._recently_touched = max(self._recently_touched, end)
        self._taken += 1
        if self._taken < _PATIENCE:
            return
        self._give_back(max(self._recently_touched, self._end_of_use()))
        self._taken = self._recently_touched = 0

    def _end_of_use(self) -> int:
        start, size = self._free[-1] if self._free else (0, 0)
        return start if start + size == len(self._range) else len(self._range)

    def _give_back(self, start: int) -> None:
        if start < self._touched:
            self._range.madvise(mmap.MADV_DONTNEED, start, self._touched - start)
            self._touched = start
            self._ready = min(self._ready, start)


@cache
def _system_call() -> Callable[[int, int, int], int]:
    """``madvise`` for any address, which releases the GIL."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    made: Callable[[int, int, int], int] = function
    return made


@cache
def recycled_memory() -> RecycledMemory | None:
    """This process's instance; None if the system does not reserve such a range."""
    try:
        return RecycledMemory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return None


# Another thread may have held the lock; living blocks keep the old range.
os.register_at_fork(after_in_child=recycled_memory.cache_clear)


def take_large(size: int) -> Block | None:
    """Recycled memory for a large result; None for a small one, or where recycling is unavailable."""
    memory = recycled_memory() if size >= LARGE else None
    return memory.take(size) if memory else None


def make_ready(threads: int) -> None:
    """Map the pages of the blocks taken so far, with this many threads, where they have none."""
    memory = recycled_memory()
    if memory is not None:
        memory.make_ready(threads)
