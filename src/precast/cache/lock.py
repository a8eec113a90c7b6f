"""A lock between processes: many may use the store at once, but who removes from it is alone.

The system frees the lock of a process that dies.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE_SECONDS = 0.005


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """While active, nobody is alone; waits for whoever is, which is never long."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(path: Path, *, patience: float = 0.0) -> Iterator[bool]:
    """While active, nobody else is; gives False if others were there for all of ``patience`` seconds."""
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
