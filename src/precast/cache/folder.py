"""Folders that only their owner can write to, since code that is read from them may be run."""

import os
import stat
import sys
import warnings
from pathlib import Path

from precast.errors import CacheError

# The packages whose frames are between a caller and the cache.
_BETWEEN = ("precast", "torch", "contextlib", "threading", "concurrent")
_FIX = "name a folder of your own in PRECAST_CACHE_DIR"


class CacheWarning(UserWarning):
    """The cache could not be used; the result is correct, but took longer."""


def warn_of_cache(message: str) -> None:
    """Warn at the innermost line outside of Precast and the packages between it and its callers."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CacheWarning, stacklevel=level)


def make_private(folder: Path) -> None:
    """Create the folder and its parents if needed; refuse one that others can write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise CacheError unless the user owns the folder and nobody else can write to it."""
    facts = folder.stat()
    if not stat.S_ISDIR(facts.st_mode):
        raise CacheError(f"{folder} is not a folder", why="the cache is a folder of files", fix=_FIX)
    if facts.st_uid != os.geteuid():
        raise CacheError(
            f"the cache folder {folder} belongs to another user",
            why="what is in the cache gets run, so it must come from you",
            fix=_FIX,
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"others can write to the cache folder {folder}",
            why="what is in the cache gets run, so it must come from you",
            fix=f"chmod go-w {folder}, or {_FIX}",
        )
