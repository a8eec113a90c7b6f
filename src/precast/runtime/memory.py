"""Memory for large results, used again and again: fresh pages cost a training step more than many of its kernels.

One range of addresses is reserved once. A result lies at the lowest address that has room, so that no more is touched
than is in use at one time, but for gaps; the pages stay when a result dies. What nobody needed for a while goes back
to the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from bisect import bisect_left
from collections import deque
from functools import cache
from threading import Lock

LARGE = 1 << 18
"""From how many bytes on a result is worth the bookkeeping."""
_PAGE = 4096
_PATIENCE = 4096
"""After how many results pages that none of them used are given back."""

Block = ctypes.Array[ctypes.c_char]


class RecycledMemory:
    """Blocks of one range of addresses; each belongs to whoever holds it, and comes back when nobody does."""

    def __init__(self, capacity: int):
        # Nothing is set aside for it before it is used; older Pythons have no name for this flag.
        unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._range = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
        self._free = [(0, capacity)]
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = Lock()
        self._touched = self._recently_touched = self._taken = 0

    @property
    def touched(self) -> int:
        """How many bytes may have pages behind them."""
        return self._touched

    def take(self, size: int) -> Block | None:
        """A block of this size with anything in it; None if there is no room."""
        room = -(-size // _PAGE) * _PAGE
        with self._lock:
            self._collect()
            start = self._place(room)
            if start is None:
                return None
            self._note_use(start + room)
        block = (ctypes.c_char * size).from_buffer(self._range, start)
        # It may die in any thread, even in this one while the lock is held: so it is only noted.
        weakref.finalize(block, self._returned.append, (start, room)).atexit = False
        return block

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


@cache
def recycled_memory() -> RecycledMemory | None:
    """This process's; None where the system reserves no such range."""
    try:
        return RecycledMemory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return None


# Another thread may have held the lock; blocks that live on keep the old range.
os.register_at_fork(after_in_child=recycled_memory.cache_clear)


def take_large(size: int) -> Block | None:
    """Recycled memory for a large result; None for one that is small, or where there is none."""
    memory = recycled_memory() if size >= LARGE else None
    return memory.take(size) if memory else None
