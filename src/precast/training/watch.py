"""Detects which of several processes has ended: each writes heartbeats to the store.

A process that misses another one checks whose heartbeats have stopped, and records the result, so that all processes
report the same.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_MOST_PATIENCE = 60.0
_BEAT, _PATIENCE, _FAREWELL = 0.25, 3.0, 5.0
"""Seconds between heartbeats, without one until a process counts as ended, and for others to read the result."""
_FOUND, _READ = "precast/ended", "precast/ended/read"


class Watch(threading.Thread):
    """Writes this process's heartbeats, and reads those of others on request."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__(daemon=True, name="precast-watch")
        self._rank, self._count = rank, count
        # A connection of its own: heartbeats must not wait for the program's requests.
        self._store = torch.distributed.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        self._leaving = threading.Event()
        self._ended: list[int] | None = None

    def run(self) -> None:
        try:
            while not self._leaving.wait(_BEAT):
                self._store.add(f"precast/lives/{self._rank}", 1)
                if self._ended is None and self._store.check([_FOUND]):
                    self._ended = json.loads(self._store.get(_FOUND))
                    self._store.add(_READ, 1)
        except RuntimeError:
            # The store was served by a process that has ended; it cannot report which.
            return

    def leave(self) -> None:
        """Stop before the interpreter does: a thread that is stopped within a call would kill the process."""
        self._leaving.set()
        self.join(_MOST_PATIENCE)

    def ended(self) -> list[int]:
        """The ranks of the processes that have ended, the same in all processes that ask."""
        if self._ended is None:
            try:
                self._look()
            except RuntimeError:
                return self._ended or [0]
        return self._ended or []

    def follow(self, rank: int) -> Callable[[], bool]:
        """A function that returns whether a process has written a heartbeat recently."""
        sign, seen = -1, time.monotonic()

        def lives() -> bool:
            nonlocal sign, seen
            now = time.monotonic()
            if now - seen > _PATIENCE / 2:
                before, sign = sign, self._store.add(f"precast/lives/{rank}", 0)
                seen = now if sign != before else seen
            return now - seen < _MOST_PATIENCE

        return lives

    def _look(self) -> None:
        before = self._signs()
        time.sleep(_PATIENCE)
        found = [rank for rank, sign in enumerate(self._signs()) if sign == before[rank]]
        if found:
            self._store.compare_set(_FOUND, "", json.dumps(found))
            deadline = time.monotonic() + _FAREWELL
            # This process may serve the store: it must not end before the others have read the result.
            while time.monotonic() < deadline and self._store.add(_READ, 0) < self._count - len(found):
                time.sleep(_BEAT)

    def _signs(self) -> list[int]:
        return [self._store.add(f"precast/lives/{rank}", 0) for rank in range(self._count)]


@cache
def watch_over(group: ProcessGroup) -> Watch:
    """The watch over the processes of a group, started on first use."""
    watch = Watch(group.rank(), group.size())
    watch.start()
    atexit.register(watch.leave)
    return watch
