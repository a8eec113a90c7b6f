"""Built libraries, and how they are found again. Does not import the code that builds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precast.cache import Store
from precast.errors import BuildError
from precast.native.targets import Code

LIBRARIES = "libraries"
"""The kind of the store's entries."""


@dataclass(frozen=True, kw_only=True)
class Library(Code):
    """A built shared library; the store may evict its file: build and load it inside ``store.held()``."""

    path: Path


def find_library(key: str, needs: tuple[str, ...], *, store: Store) -> Library:
    """A library that was built before; a ``BuildError`` if it has been evicted."""

    def refuse(_: Path) -> None:
        raise BuildError(
            "a stored program refers to a library that is not in the cache",
            why="it was evicted to make room",
            fix="nothing to do: it is built again",
        )

    return Library(key, needs, path=store.file(LIBRARIES, key, refuse, suffix=".so"))
