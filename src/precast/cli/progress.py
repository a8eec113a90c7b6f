"""Progress messages of commands.

Also formats bytes and seconds for display.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console

Tell = Callable[[str], None]


PATIENCE = 3.0
"""Seconds that a step may take before anything is logged without a terminal."""
PAUSE = 10.0
"""Seconds between two log lines about one step."""


@contextmanager
def telling_steps() -> Iterator[Tell]:
    """Yield a function to call with the name of each step.

    On a terminal each is a line on standard error; the step may show a progress bar below it. Elsewhere, a long step is
    logged from time to time, so that logs show progress.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        yield lambda step: console.print(f"{step}…", style="dim", highlight=False, markup=False)
        return
    with LoggedSteps() as logged:
        yield logged.begin


class LoggedSteps:
    """Logs the current step: after a while, and then from time to time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._step, self._began, self._is_over = "", time.monotonic(), False
        self._thread = threading.Thread(target=self._write, name="precast-progress", daemon=True)

    def begin(self, step: str) -> None:
        with self._changed:
            self._step, self._began = step, time.monotonic()
            self._changed.notify()

    def goes_on(self, step: str) -> None:
        """Update the text of the current step, e.g. with its progress."""
        with self._changed:
            self._step = step

    def _write(self) -> None:
        wait = PATIENCE
        with self._changed:
            while not self._is_over:
                is_changed = self._changed.wait(wait)
                if is_changed or not self._step:
                    wait = PATIENCE
                    continue
                print(f"{self._step}… {time.monotonic() - self._began:.0f} s", file=sys.stderr, flush=True)
                wait = PAUSE

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()


def bytes_text(count: int) -> str:
    """Bytes in powers of 1024.

    >>> bytes_text(3 << 19)
    '1.5 MiB'
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "node"), counted(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """A time in a suitable unit.

    >>> [seconds_text(each) for each in (2.5, 0.0123, 0.0000071)]
    ['2.50 s', '12.3 ms', '7.1 µs']
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
