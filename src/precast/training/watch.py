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
_BEAT, _PATIENCE, _FAREWELL = 0.25, 10.0, 30.0
"""Seconds between heartbeats, without one until a process counts as ended, and for others to read the result."""
_FOUND = "precast/ended"


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
                    self._learn(self._store.get(_FOUND))
        except RuntimeError:
            # The store was served by a process that has ended; it cannot report which.
            return

    def leave(self) -> None:
        """Stop before the interpreter does: a thread that is stopped within a call would kill the process."""
        self._leaving.set()
        self.join(_MOST_PATIENCE)

    def ended(self) -> list[int]:
        """The ranks of the processes that have ended, the same in all processes that ask."""
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
        silent = dict(enumerate(self._signs()))
        deadline = time.monotonic() + _PATIENCE
        while silent and self._ended is None and time.monotonic() < deadline:
            time.sleep(_BEAT)
            now = self._signs()
            silent = {rank: sign for rank, sign in silent.items() if now[rank] == sign}
        if self._ended is None:
            if not silent:
                return
            self._learn(self._store.compare_set(_FOUND, "", json.dumps(list(silent))))
        deadline = time.monotonic() + _FAREWELL
        readers = [_read_by(rank) for rank in range(self._count) if rank not in (self._ended or ())]
        # This process may serve the store: it must not end before the others have read the result.
        while time.monotonic() < deadline and not self._store.check(readers):
            time.sleep(_BEAT)

    def _learn(self, found: bytes) -> None:
        """Take over what the first process that looked has found."""
        self._ended = json.loads(found)
        self._store.set(_read_by(self._rank), "1")

    def _signs(self) -> list[int]:
        return [self._store.add(f"precast/lives/{rank}", 0) for rank in range(self._count)]


@cache
def watch_over(group: ProcessGroup) -> Watch:
    """The watch over the processes of a group, started on first use."""
    watch = Watch(group.rank(), group.size())
    watch.start()
    atexit.register(watch.leave)
    return watch


def _read_by(rank: int) -> str:
    """The key that a process sets once it has read the result."""
    return f"{_FOUND}/read/{rank}"
