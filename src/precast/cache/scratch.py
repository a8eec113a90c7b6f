"""Files for as long as this process lives."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def new_scratch_folder() -> Path:
    """An empty folder that is gone when the process ends."""
    return Path(tempfile.mkdtemp(dir=_scratch_of(os.getpid())))


@cache
def _scratch_of(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="precast-"))
    atexit.register(_remove_own, folder, process)
    return folder


def _remove_own(folder: Path, process: int) -> None:
    # A forked child has the registration too, and must not take its parent's files away.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
