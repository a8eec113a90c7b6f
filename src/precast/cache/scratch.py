"""Files for as long as this process lives; what killed ones left is removed by the next that needs any."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from precast.cache.partial import locked_folder


def new_scratch_folder() -> Path:
    """An empty folder that is gone when the process ends."""
    return Path(tempfile.mkdtemp(dir=_scratch_of(os.getpid())))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder that is gone when this ends."""
    folder = new_scratch_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _scratch_of(process: int) -> Path:
    # The lock is never let go: it tells the next process that this one, or a child of it, is still there.
    folder, _ = locked_folder("precast-", Path(tempfile.gettempdir()))
    atexit.register(_remove_own, folder, process)
    return folder


def _remove_own(folder: Path, process: int) -> None:
    # A forked child has the registration too, and must not take its parent's files away.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
