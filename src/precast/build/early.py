"""Compile units before anyone asks for them: while a program is still traced, in Python, another core is idle.

What runs are compiler processes, and no threads of ours: nothing is in the way of a fork, and what nobody waited for
ends with this process. A compiler that fails here is asked again by whoever needs the unit, and it then tells why.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path


@dataclass(frozen=True, eq=False)
class _Started:
    """One unit on its way: who compiles it, and which process may wait for that."""

    compiling: subprocess.Popen[bytes]
    owner: int
    made: Path


_started: dict[str, _Started] = {}
"""By the key of the unit. What has ended stays: another library may need the unit too."""


def start(command: Sequence[str], units: Mapping[str, Path]) -> None:
    """Run `command` with ``-c`` on units, by key: files in one folder, next to which their object files appear."""
    for share in _shares(list(units), max(1, (cpu_count() or 1) - 1)):
        files = [units[key] for key in share]
        compiling = subprocess.Popen(
            [*command, "-c", *map(str, files)],
            cwd=files[0].parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        atexit.register(_end, compiling, os.getpid())
        for key, file in zip(share, files, strict=True):
            _started[key] = _Started(compiling, os.getpid(), file.with_suffix(".o"))


def is_started(key: str) -> bool:
    """Whether this process has started to compile the unit. A forked child has not: it cannot wait for it."""
    return key in _started and _started[key].owner == os.getpid()


def take(key: str, target: Path) -> bool:
    """Wait for the unit and copy it to `target`; False if it was not started, or not compiled."""
    if not is_started(key):
        return False
    started = _started[key]
    if started.compiling.wait() != 0 or not started.made.exists():
        return False
    shutil.copyfile(started.made, target)
    return True


def _shares(keys: list[str], count: int) -> list[list[str]]:
    return [share for number in range(count) if (share := keys[number::count])]


def _end(compiling: subprocess.Popen[bytes], owner: int) -> None:
    # A forked child has the registration too, and must leave its parent's processes alone.
    if os.getpid() == owner and compiling.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(compiling.pid, signal.SIGTERM)
        compiling.wait()
