"""Folders that only their owner can write to, since what is read from them may be run."""

import os
import stat
from pathlib import Path

from precast.errors import CacheError

_FIX = "name a folder of your own in PRECAST_CACHE_DIR"


class CacheWarning(UserWarning):
    """The cache could not help; the result is right all the same, and took longer."""


def make_private(folder: Path) -> None:
    """Make the folder and those above it, unless they are there; refuse one that others can write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise CacheError unless the folder is the user's own and nobody else can write to it."""
    facts = folder.stat()
    if not stat.S_ISDIR(facts.st_mode):
        raise CacheError(f"{folder} is no folder", why="the cache is a folder of files", fix=_FIX)
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
