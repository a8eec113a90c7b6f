"""A bar for those who wait: shown once something takes more than a second, and only to people."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE = 1.0
"""Seconds before anything is shown."""
_screen = threading.Lock()


class Progress:
    """Counts what is done; shows it from `start` on."""

    def __init__(self, what: str, *, total: int, console: Console):
        # Loaded by those who wait: it takes longer than a start that finds everything built.
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._task = self._bar.add_task(what, total=total)
        self._is_over = self._is_shown = False
        self._lock = threading.Lock()

    def advance(self) -> None:
        self._bar.advance(self._task)

    def start(self) -> None:
        with self._lock:
            # Two that wait at once would write over each other: the second stays silent.
            if not self._is_over and _screen.acquire(blocking=False):
                self._is_shown = True
                self._bar.start()

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            if self._is_shown:
                self._bar.stop()
                self._is_shown = False
                _screen.release()


@contextmanager
def showing_progress(what: str, *, total: int, console: Console | None = None) -> Iterator[Progress]:
    """While active, and after `PATIENCE`, a bar on standard error, if that is a terminal."""
    from rich.console import Console

    console = console or Console(stderr=True)
    progress = Progress(what, total=total, console=console)
    timer = threading.Timer(PATIENCE, progress.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield progress
    finally:
        timer.cancel()
        progress.stop()
