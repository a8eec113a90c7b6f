"""Loads the libraries that a model calls before the model, so that it finds them whatever the search path is."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from precast.errors import ArtifactError
from precast.options import environment_variables

LAPACK = "libscipy_openblas.so"
"""The library that programs with linear algebra load themselves, unless it is already loaded."""


@dataclass(frozen=True)
class KnownLibrary:
    """A library that models may need: the distribution that contains it, and how to install it.

    `others` are alternatives, and so is a library whose path is in the environment variable `variable`.
    """

    distribution: str
    fix: str
    purpose: str
    others: tuple[str, ...] = ()
    variable: str | None = None


KNOWN = {
    "libdnnl.so.3": KnownLibrary("onednn-cpu-gomp", "pip install onednn-cpu-gomp", "matrix products"),
    LAPACK: KnownLibrary(
        "scipy-openblas32",
        "pip install 'precast[lapack]', or let PRECAST_LAPACK be the path of a shared library that has LAPACK",
        "linear algebra",
        others=("liblapack.so.3", "libopenblas.so.0"),
        variable="PRECAST_LAPACK",
    ),
}
"""Libraries that a model may need, by their file names."""


def preload(names: tuple[str, ...]) -> None:
    """Load each of `names` once, with local symbols: torch contains its own oneDNN, and the two must not mix."""
    for name in names:
        if name not in KNOWN:
            raise ArtifactError(
                f"the model needs the library {name!r}",
                why=f"models may need {', '.join(KNOWN)} and nothing else",
                fix="package the model again with this version of Precast",
            )
        for candidate in candidates(name):
            try:
                ctypes.CDLL(candidate, mode=os.RTLD_NOW | os.RTLD_LOCAL)
                break
            except OSError:
                continue
        else:
            known = KNOWN[name]
            if requested := _requested(known):
                raise ArtifactError(
                    f"the library {requested!r}, which {known.variable} names, cannot be loaded",
                    why=f"the model needs it for {known.purpose}, and no other is tried",
                    fix=f"name another in {known.variable}, or unset that variable",
                )
            raise ArtifactError(
                f"the library {name} is not on this machine",
                why=f"the model calls it for {known.purpose}",
                fix=known.fix,
            )


def candidates(name: str) -> list[str]:
    """The paths to try for a known library, in order; a library requested by its path replaces all others."""
    requested = _requested(KNOWN[name])
    return [requested] if requested else [*_installed(name), name, *KNOWN[name].others]


def _requested(known: KnownLibrary) -> str | None:
    return environment_variables().get(known.variable) if known.variable else None


def _installed(name: str) -> list[str]:
    """Where pip installed it: under this Python's prefix, else where the package's record says."""
    usual = Path(sys.prefix) / "lib" / name
    if usual.exists():
        return [str(usual)]
    # Slow to import, and rarely needed.
    from importlib import metadata

    try:
        files = metadata.files(KNOWN[name].distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(str(file.locate())).resolve()) for file in files if file.name == name]
