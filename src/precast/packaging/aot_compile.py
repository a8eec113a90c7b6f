"""A module or function → one shared library with code, weights, and the calling convention."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from precast.artifact.archive import check_folder
from precast.artifact.manifest import manifest_text, packed_entry
from precast.artifact.schema import Json
from precast.artifact.weights import weight_pieces
from precast.cache import content_key
from precast.cache.folder import make_private
from precast.cache.partial import scratch_folder
from precast.export.export import export
from precast.native.describe import describe_entry
from precast.options import Options, as_options
from precast.packaging.calls import DEFAULT_NAME, as_module, example_arguments
from precast.packaging.native_program import library_target
from precast.packaging.package import NATIVE, build_targets, prepare_entries, stored_places
from precast.packaging.storages import SharedStorages, refuse_shared_updates


def aot_compile(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | Mapping[str, Any] | None = None,
    remove_runtime_assertions: bool = False,
    disable_constraint_solver: bool = False,
    same_signature: bool = True,
) -> str:
    """Compile a module or function for this machine into one shared library, and return its path.

    The library contains code, weights and the signature. It needs the libraries of the base install, and no Python.
    Load it with ``aot_load``, or from C through ``precast.h``.

    ``options`` are those of ``precast.compile``, and ``output_path``, the file to write. The default is a file in the
    folder ``aot`` of the cache directory, named by its content; it is never removed automatically.
    With ``remove_runtime_assertions``, calls check ranges of sizes only, and no other conditions from tracing.
    With ``same_signature=False``, the loaded function takes and returns flat sequences of tensors.
    ``disable_constraint_solver`` is accepted for compatibility with PyTorch and ignored.

    >>> import precast, tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = aot_compile(torch.relu, (torch.ones(2),), options={"output_path": f"{folder}/relu.so"})
    ...     precast.aot_load(path, "cpu")(torch.tensor([-1.0, 1.0]))
    tensor([0., 1.])
    """
    chosen, output = _choices(options)
    if output is not None:
        check_folder(output)
    exported = export(as_module(f), example_arguments(args), kwargs, dynamic_shapes=dynamic_shapes)
    storages = SharedStorages()
    entries = prepare_entries({DEFAULT_NAME: exported}, storages, chosen, checks_sizes=not remove_runtime_assertions)
    prepared = entries[DEFAULT_NAME]
    refuse_shared_updates(storages.state, prepared.code.updated_state)
    storages = storages.used_by(prepared.code)
    described = packed_entry(describe_entry(prepared.code), call=prepared.call if same_signature else None)
    (target,) = build_targets([NATIVE])
    manifest = _manifest(described, storages, target.features, library_target().libraries([prepared.code]))
    with scratch_folder() as scratch:
        weights = scratch / "weights.safetensors"
        with weights.open("wb") as file:
            file.writelines(weight_pieces(storages.weights) if storages.weights else [])
        path = library_target().write_library(
            prepared.code,
            stored_places(storages.state),
            chosen,
            weights=weights,
            manifest=manifest,
            place=lambda key: output or _default_path(chosen, key, weights),
        )
    return str(path)


def _choices(options: Options | Mapping[str, Any] | None) -> tuple[Options, Path | None]:
    if not isinstance(options, Mapping):
        return as_options(options), None
    given = dict(options)
    output = given.pop("output_path", None)
    return as_options(given), None if output is None else Path(output).absolute()


def _manifest(entry: Json, storages: SharedStorages, features: Sequence[str], libraries: Sequence[str]) -> str:
    """The library's manifest, as ASCII text."""
    targets: list[Json] = [{"name": NATIVE, "file": None, "features": list(features)}]
    text = manifest_text({}, entries=[entry], state=storages.state, targets=targets, libraries=libraries)
    return json.dumps(json.loads(text))


def _default_path(options: Options, code: str, weights: Path) -> Path:
    folder = options.cache_directory / "aot"
    for needed in (options.cache_directory, folder):
        make_private(needed)
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return folder / f"{content_key([code, digest])}.so"
