"""Open a self-contained library: code, weights and the signature in one file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from precast.artifact.manifest import Manifest, parse_manifest
from precast.artifact.schema import damaged
from precast.errors import ArtifactError, InputValueError
from precast.runtime.entry import flat_entries
from precast.runtime.model import Model, ModelEntry
from precast.runtime.native import NativeLibrary, OpenModel, load_library
from precast.runtime.onednn import KNOWN, preload
from precast.runtime.processor import choose_target, processor_features
from precast.runtime.state import NativeState, State


def aot_load(path: str | os.PathLike[str], device: Any = "cpu") -> Model:
    """Load what ``aot_compile`` wrote: a model that is called as the original was.

    A library is code, and loading it runs it: load only what you would run. Weights are mapped, not read.
    """
    _check_device(device)
    library = _loaded(Path(path))
    manifest = _manifest(library, path)
    (target,) = manifest.targets[:1] or (None,)
    if target is None:
        raise damaged(f"{os.fspath(path)} does not say which processors it is for", "it names no target")
    choose_target([target], processor_features())
    opened = OpenModel(library, {})
    flat = flat_entries(opened)
    if tuple(each.description for each in flat) != tuple(each.interface for each in manifest.entries):
        raise damaged("the manifest describes other entries than the code", "they do not belong together")
    entries = [
        each if packed.call is None else ModelEntry(each, packed.call)
        for each, packed in zip(flat, manifest.entries, strict=True)
    ]
    return Model(entries, State(NativeState(opened)), target=target.name)


def _check_device(device: Any) -> None:
    name = str(device)
    if name == "cpu":
        return
    if re.fullmatch(r"cuda(:\d+)?", name):
        raise InputValueError(
            f"The model cannot be loaded for {name}.",
            why="its code was made for the CPU",
            fix="Load it for 'cpu', and move tensors there.",
        )
    raise InputValueError(
        f"{name!r} is no device that models run on.", why="models are compiled for 'cpu'", fix="Pass 'cpu'."
    )


def _loaded(path: Path) -> NativeLibrary:
    if not path.is_file():
        raise ArtifactError(f"{path} cannot be read", why="there is no such file", fix="check the path")
    try:
        try:
            return load_library(path.resolve())
        except OSError as problem:
            # Whoever loads a model loads what it needs first; which that is, the loader says.
            missing = [name for name in KNOWN if name in str(problem)]
            if not missing:
                raise
            preload(tuple(missing))
            return load_library(path.resolve())
    except (OSError, AttributeError) as problem:
        raise ArtifactError(
            f"{path} cannot be loaded: {problem}",
            why="it is no library of Precast's, or was made for another machine",
            fix="compile the model again with precast.aot_compile",
        ) from problem


def _manifest(library: NativeLibrary, path: str | os.PathLike[str]) -> Manifest:
    text = library.manifest()
    if not text:
        raise ArtifactError(
            f"{os.fspath(path)} does not say how it is called",
            why="it is a library out of a package, and that is in the package",
            fix="load the package with precast.runtime.load",
        )
    return parse_manifest(text)
