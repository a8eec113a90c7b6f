"""A progress bar for builds: shown after a second, and only on a terminal."""

from __future__ import annotations

import sys
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
    """Counts completed units; shows a bar from `start` on."""

    def __init__(self, what: str, *, total: int, console: Console | None = None):
        # Imported only by builds: it takes longer than a start that finds everything cached.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console or Console(stderr=True), transient=True)
        self._task = self._bar.add_task(what, total=total)
        self._is_over = self._is_shown = False
        self._lock = threading.Lock()

    def advance(self) -> None:
        self._bar.advance(self._task)

    def start(self) -> None:
        with self._lock:
            # Two bars at once would overwrite each other: the second stays silent.
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


class NoProgress:
    """Used where there is no terminal."""

    def advance(self) -> None:
        """Do nothing."""


def _is_watched() -> bool:
    # A process may have no standard error, or a replacement without this method.
    is_terminal = getattr(sys.stderr, "isatty", None)
    return is_terminal is not None and bool(is_terminal())


@contextmanager
def showing_progress(what: str, *, total: int, console: Console | None = None) -> Iterator[Progress | NoProgress]:
    """While active, show a bar on standard error after `PATIENCE`, if that is a terminal."""
    if not (_is_watched() if console is None else console.is_terminal):
        yield NoProgress()
        return
    progress = Progress(what, total=total, console=console)
    timer = threading.Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()
        progress.stop()
