"""Opens a model's file and runs it: no torch, no compiler, no network.

Also opens self-contained libraries, with code, weights and the signature in one file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from precast.artifact.manifest import Manifest, parse_manifest
from precast.artifact.package import Package, naming_file, open_package
from precast.artifact.schema import damaged
from precast.artifact.signatures import MAX_SIGNATURE, SUFFIX, check_signature
from precast.errors import ArtifactError, InputTypeError, InputValueError, MissingFileError, ToolMissingError
from precast.runtime.entry import Entry, flat_entries
from precast.runtime.libraries import KNOWN, preload
from precast.runtime.model import Model, ModelEntry, Runnable
from precast.runtime.native import NativeLibrary, OpenModel, load_library, load_library_bytes
from precast.runtime.processor import choose_target, processor_features
from precast.runtime.state import NativeState, State
from precast.runtime.verification import verify_package

Source = str | os.PathLike[str] | bytes | BinaryIO


def load(
    source: Source,
    *,
    threads: int | None = None,
    allow_native: bool = True,
    require_signature: Any = None,
    signature: bytes | None = None,
    check_weights: bool | None = None,
    target: str | None = None,
    copy: bool | None = None,
    device: str | None = None,
) -> Model:
    """Open a ``.precast`` file, given as a path, as bytes, or as an open binary file.

    Everything is checked before it is used; a bad file raises an ``ArtifactError``. Native code runs with your rights:
    a checksum proves that a file is intact, not that its author can be trusted.

    ``threads``: the number of threads for one call; by default as many as OpenMP would use.
    ``allow_native=False``: load no native code from the file; torch interprets the program in it instead.
    ``require_signature``: the public ed25519 key that must have signed the file, or several keys, one of which must
    have. The signature is read from the path with ``.sig`` appended; without a path, pass its content as ``signature``.
    ``check_weights``: read all weights now and check their SHA-256; by default only if a signature is required.
    ``target``: the native code to run; by default the best that this processor supports.
    ``copy``: read the file into memory once; by default if weights are checked, so that what was checked is what is
    used. Otherwise the file is memory-mapped and must not be truncated or overwritten while the model is in use.
    ``device``: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; by default the CPU if the file has code for it. Arrays that are
    on the GPU already stay there, and so do their results.
    """
    _check_threads(threads)
    ordinal = _ordinal(device)
    checks_weights = require_signature is not None if check_weights is None else check_weights
    with naming_file(source):
        package = _opened(source, writable=not allow_native, copy=checks_weights if copy is None else copy)
        if not package.manifest.entries:
            raise ArtifactError(
                "the file has nothing to call",
                why="it holds no entries; a program that was saved is not compiled",
                fix="package it: precast.package(precast.load(path), path='model.precast')",
            )
        if require_signature is not None:
            check_signature(package.manifest_bytes, _signature(source, signature), require_signature)
        if checks_weights:
            package.verify()
        if not allow_native:
            return _interpreted(package)
        if device is None and _is_for_gpus_alone(package, target):
            ordinal = 0
        return _native(package, threads or 0, target) if ordinal is None else _on_gpu(package, ordinal, target)


def _native(package: Package, threads: int, wanted: str | None) -> Model:
    chosen = choose_target(package.manifest.targets, processor_features(), wanted=wanted)
    if chosen.file is None:
        raise damaged(f"the target {chosen.name!r} has no file", "a package holds its code in files")
    code = package.code(chosen.file)
    preload(package.manifest.libraries)
    library = load_library_bytes(code, name="model.so")

    def fresh() -> OpenModel:
        return _open(package, library, threads)

    opened = fresh()
    flat = flat_entries(opened)
    if tuple(each.description for each in flat) != tuple(each.interface for each in package.manifest.entries):
        raise damaged("the manifest describes other entries than the code", "file and code do not belong together")
    return Model(
        _with_calls(package, flat),
        State(NativeState(opened)),
        verifier=lambda: verify_package(package, lambda: flat_entries(fresh())),
        target=chosen.name,
    )


def _on_gpu(package: Package, ordinal: int, wanted: str | None) -> Model:
    # Imported only where it is needed.
    from precast.runtime.gpu.open import open_on_gpu

    chosen, opened, entries = open_on_gpu(package, ordinal, wanted)
    return Model(
        _with_calls(package, entries),
        State(opened),
        verifier=lambda: verify_package(package, lambda: open_on_gpu(package, ordinal, wanted)[2]),
        target=chosen.name,
    )


def _is_for_gpus_alone(package: Package, wanted: str | None) -> bool:
    """Whether all code that may be chosen is for GPUs."""
    names = [each.name for each in package.manifest.targets if wanted in (None, each.name)]
    return bool(names) and all(name.startswith("cuda:") for name in names)


def _open(package: Package, library: NativeLibrary, threads: int) -> OpenModel:
    try:
        return OpenModel(library, package.state(), threads=threads)
    except ArtifactError:
        raise
    except ValueError as problem:
        raise damaged("the state in the file is not what its code expects", str(problem)) from problem


def _interpreted(package: Package) -> Model:
    # Found by name: the interpreter is in a layer above the runtime, which must not import torch.
    try:
        interpreted = import_module("precast.packaging.interpreted")
    except ImportError as problem:
        raise ToolMissingError(
            "A model can be interpreted only where torch is installed.",
            why="its native code is not allowed, so torch would have to run it",
            fix="pip install 'precast[torch]', or allow the native code if you trust the file's maker",
        ) from problem
    entries, store = interpreted.interpreted_entries(package)
    fresh = interpreted.interpreted_entries
    return Model(
        _with_calls(package, entries),
        State(store),
        verifier=lambda: verify_package(package, lambda: fresh(package)[0]),
    )


def _with_calls(package: Package, runnables: Sequence[Runnable]) -> list[Entry | ModelEntry]:
    return [
        ModelEntry(each, packed.call) if packed.call is not None else each  # type: ignore[misc]
        for each, packed in zip(runnables, package.manifest.entries, strict=True)
    ]


def _opened(source: Source, *, writable: bool, copy: bool) -> Package:
    if isinstance(source, str | os.PathLike):
        return open_package(Path(source), writable=writable, copy=copy)
    if isinstance(source, bytes | bytearray | memoryview):
        return open_package(bytes(source), writable=writable)
    if not hasattr(source, "read"):
        raise InputTypeError(
            f"load() was given an object of type {type(source).__name__}.",
            why="a model is read from a path, from bytes, or from an open binary file",
            fix="Pass a path, or open(path, 'rb').",
        )
    return open_package(source.read(), writable=writable)


def _signature(source: Source, given: bytes | None) -> bytes | None:
    if given is not None or not isinstance(source, str | os.PathLike):
        return given
    beside = Path(f"{os.fspath(source)}{SUFFIX}")
    if not beside.is_file():
        return None
    with beside.open("rb") as file:
        return file.read(MAX_SIGNATURE + 1)


def _check_threads(threads: int | None) -> None:
    if threads is not None and not (type(threads) is int and 0 < threads <= 4096):
        raise InputValueError(
            f"threads cannot be {threads!r}.", why="it is how many threads one call uses", fix="Pass 1 or more."
        )


def _ordinal(device: str | None) -> int | None:
    """The number of the requested GPU; None for the CPU, or for whatever the file has."""
    if device in (None, "cpu"):
        return None
    found = re.fullmatch(r"cuda(?::(\d{1,3}))?", str(device))
    if found is None:
        raise InputValueError(
            f"{device!r} is not a device that models run on.",
            why="packages hold code for processors and for GPUs of NVIDIA's",
            fix="Pass 'cpu', 'cuda' or, for example, 'cuda:1'.",
        )
    return int(found[1] or 0)


def aot_load(path: str | os.PathLike[str], device: Any = "cpu") -> Model:
    """Load a library that ``aot_compile`` wrote: a model that is called as the original was.

    Loading a library runs its code: load only libraries that you trust. Weights are memory-mapped.
    """
    _check_device(device)
    library = _loaded(Path(path))
    manifest = _manifest(library, path)
    (target,) = manifest.targets[:1] or (None,)
    if target is None:
        raise damaged(f"{os.fspath(path)} does not say which processors it is for", "it names no target")
    choose_target([target], processor_features())
    preload(manifest.libraries)
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
        f"{name!r} is not a device that models run on.", why="models are compiled for 'cpu'", fix="Pass 'cpu'."
    )


def _loaded(path: Path) -> NativeLibrary:
    if not path.is_file():
        raise MissingFileError(f"{path} cannot be read", why="there is no such file", fix="check the path")
    if path.suffix == ".precast":
        raise ArtifactError(
            f"{path} is not a shared library",
            why="packages have this suffix, and contain more than a library",
            fix="open it with precast.runtime.load",
        )
    try:
        try:
            return load_library(path.resolve())
        except OSError as problem:
            # Libraries that a model needs are loaded before it; the loader's message names the missing one.
            missing = [name for name in KNOWN if name in str(problem)]
            if not missing:
                raise
            preload(tuple(missing))
            return load_library(path.resolve())
    except (OSError, AttributeError) as problem:
        raise ArtifactError(
            f"{path} cannot be loaded: {problem}",
            why="it is not a library of Precast's, or was made for another machine",
            fix="compile the model again with precast.aot_compile",
        ) from problem


def _manifest(library: NativeLibrary, path: str | os.PathLike[str]) -> Manifest:
    text = library.manifest()
    if not text:
        raise ArtifactError(
            f"{os.fspath(path)} does not say how it is called",
            why="it is a library from a package, which contains that",
            fix="load the package with precast.runtime.load",
        )
    return parse_manifest(text)
