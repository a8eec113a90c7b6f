"""Finds and loads cuBLASLt and cuDNN: from NVIDIA's wheels, or from the system."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from precast.errors import GpuError


@dataclass(frozen=True)
class NvidiaLibrary:
    """A library of NVIDIA's: the supported versions of its interface, newest first, and how to install it."""

    file: str
    versions: tuple[int, ...]
    purpose: str
    fix: str


CUBLASLT = NvidiaLibrary(
    "libcublasLt.so", (13, 12), "matrix products", "pip install nvidia-cublas (CUDA 13) or nvidia-cublas-cu12"
)
CUDNN = NvidiaLibrary(
    "libcudnn.so", (9,), "convolutions", "pip install nvidia-cudnn-cu13 (CUDA 13) or nvidia-cudnn-cu12"
)


@cache
def load(library: NvidiaLibrary) -> ctypes.CDLL:
    """Load the library; a ``GpuError`` if it is not found."""
    problems = []
    for candidate in candidates(library):
        try:
            return ctypes.CDLL(candidate, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError as problem:
            problems.append(str(problem))
    raise GpuError(
        f"the library {library.file}.{library.versions[0]} is not on this machine",
        why=f"the model calls it for {library.purpose} ({problems[-1]})",
        fix=library.fix,
    )


def candidates(library: NvidiaLibrary, search: Sequence[str] | None = None) -> Iterator[str]:
    """Paths in NVIDIA's wheels on Python's search path, then names for the system's loader."""
    names = [f"{library.file}.{version}" for version in library.versions]
    folders = [Path(each) / "nvidia" for each in (sys.path if search is None else search) if each]
    for folder in (each for each in folders if each.is_dir()):
        for name in names:
            yield from map(str, sorted(folder.glob(f"*/lib/{name}"), reverse=True))
    for folder in (each.parent / "torch" / "lib" for each in folders):
        # Some builds of torch include them; torch itself is not imported.
        yield from (str(folder / name) for name in names if (folder / name).is_file())
    yield from names


def functions(library: NvidiaLibrary, signatures: Mapping[str, tuple[object, ...]]) -> ctypes.CDLL:
    """The loaded library, with the types of the functions that are called."""
    loaded = load(library)
    for name, arguments in signatures.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = list(arguments), ctypes.c_int
    return loaded


def check(status: int, what: str) -> None:
    """Raise if a library's status is an error."""
    if status:
        raise RuntimeError(f"{what} failed with status {status}")
