"""Locates oneDNN's headers and library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from precast.errors import BuildError


@dataclass(frozen=True)
class OneDnn:
    """Folders to compile and link with; `identity` is its version header."""

    include: Path
    library: Path
    identity: str


def find_onednn(prefix: Path | None = None) -> OneDnn:
    """Find oneDNN as its wheels install it, under `prefix` (by default, this Python's)."""
    prefix = prefix or Path(sys.prefix)
    include, library = prefix / "include", prefix / "lib" / "libdnnl.so.3"
    if not (include / "dnnl.h").exists() or not library.exists():
        raise BuildError(
            f"oneDNN is not installed under {prefix}",
            why="matrix products are calls of oneDNN",
            fix="pip install onednn-cpu-gomp onednn-devel-cpu-gomp",
        )
    return OneDnn(include, library, (include / "dnnl_version.h").read_text())
