"""Open a model's file and run it: no torch, no compiler, no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from precast.artifact.package import native_member, open_package
from precast.artifact.schema import damaged
from precast.runtime.model import Model, open_model
from precast.runtime.native import load_library_bytes
from precast.runtime.onednn import preload

TARGET = "native"


def load(source: str | os.PathLike[str] | bytes | BinaryIO) -> Model:
    """Open a ``.precast`` file given by path, as bytes, or as an open binary file.

    Everything is checked before it is used; what is wrong is an ``ArtifactError``. Native code runs with your rights: a
    checksum says that the file is whole, not that its maker means well.
    """
    if isinstance(source, str | os.PathLike):
        package = open_package(Path(source))
    else:
        package = open_package(source if isinstance(source, bytes) else source.read())
    code = package.checked(native_member(TARGET))
    preload(package.manifest.libraries)
    model = open_model(load_library_bytes(code, name="model.so"), weights=package.weights())
    if tuple(model[name].description for name in model.entries) != package.manifest.entries:
        raise damaged("the manifest describes other entries than the code", "file and code do not belong together")
    return model
