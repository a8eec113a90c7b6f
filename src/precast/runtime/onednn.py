"""Loads the libraries that a model calls, before the model, so that it finds them whatever the search path is."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from precast.errors import ArtifactError

KNOWN = {"libdnnl.so.3": "onednn-cpu-gomp"}
"""Libraries a model may need → the package that brings them."""


def preload(names: tuple[str, ...]) -> None:
    """Load each of `names` once. Locally: torch has its own oneDNN inside, and neither may answer for the other."""
    for name in names:
        if name not in KNOWN:
            raise ArtifactError(
                f"the model needs the library {name!r}",
                why=f"models may need {', '.join(KNOWN)} and nothing else",
                fix="package the model again with this version of Precast",
            )
        for candidate in (*_installed(name), name):
            try:
                ctypes.CDLL(candidate, mode=os.RTLD_NOW | os.RTLD_LOCAL)
                break
            except OSError:
                continue
        else:
            raise ArtifactError(
                f"the library {name} is not on this machine",
                why="the model calls it for matrix products",
                fix=f"pip install {KNOWN[name]}",
            )


def _installed(name: str) -> list[str]:
    """Where pip put it: under this Python's prefix, else wherever the package's record says."""
    usual = Path(sys.prefix) / "lib" / name
    if usual.exists():
        return [str(usual)]
    # Slow to import, and hardly ever needed.
    from importlib import metadata

    try:
        files = metadata.files(KNOWN[name]) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(str(file.locate())).resolve()) for file in files if file.name == name]
