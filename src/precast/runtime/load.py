"""Open a model's file and run it: no torch, no compiler, no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from precast.artifact.package import Package, open_package
from precast.artifact.schema import damaged
from precast.errors import ArtifactError
from precast.runtime.model import Entry, Model, ModelEntry, flat_entries
from precast.runtime.native import NativeLibrary, OpenModel, load_library_bytes
from precast.runtime.onednn import preload
from precast.runtime.processor import choose_target, processor_features
from precast.runtime.state import NativeState, State
from precast.runtime.verification import verify_package

Source = str | os.PathLike[str] | bytes | BinaryIO


def load(
    source: Source,
    *,
    threads: int | None = None,
    target: str | None = None,
) -> Model:
    """Open a ``.precast`` file given by path, as bytes, or as an open binary file.

    Everything is checked before it is used; what is wrong is an ``ArtifactError``. Native code runs with your rights: a
    checksum says that the file is whole, not that its maker means well.

    ``threads``: how many one call uses, by default as many as OpenMP would. ``target``: which of the file's native code
    to run, by default the best that this processor can.
    """
    package = _opened(source)
    chosen = choose_target(package.manifest.targets, processor_features(), wanted=target)
    code = package.code(chosen.file)
    preload(package.manifest.libraries)
    library = load_library_bytes(code, name="model.so")
    opened = _open(package, library, threads or 0)
    return Model(
        _entries(package, opened),
        State(NativeState(opened)),
        verifier=lambda: verify_package(package, lambda: flat_entries(_open(package, library, threads or 0))),
        target=chosen.name,
    )


def _opened(source: Source) -> Package:
    if isinstance(source, str | os.PathLike):
        return open_package(Path(source))
    return open_package(source if isinstance(source, bytes) else source.read())


def _open(package: Package, library: NativeLibrary, threads: int) -> OpenModel:
    try:
        return OpenModel(library, package.state(), threads=threads)
    except ValueError as problem:
        if isinstance(problem, ArtifactError):
            raise
        raise damaged("the state in the file is not what its code expects", str(problem)) from problem


def _entries(package: Package, opened: OpenModel) -> Sequence[Entry | ModelEntry]:
    flat = flat_entries(opened)
    if tuple(each.description for each in flat) != tuple(each.interface for each in package.manifest.entries):
        raise damaged("the manifest describes other entries than the code", "file and code do not belong together")
    return [
        each if packed.call is None else ModelEntry(each, packed.call)
        for each, packed in zip(flat, package.manifest.entries, strict=True)
    ]
