"""What a file says about itself: version, entries, and the size and hash of everything in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from precast.artifact.schema import (
    ANYTHING,
    NOTHING,
    Count,
    Json,
    ListOf,
    MapOf,
    OneOf,
    Shape,
    Text,
    damaged,
    parse_json,
)
from precast.errors import ArtifactError

FORMAT = "precast"
FORMAT_VERSION = 1
"""Version log: 1 (2026-11) the first: entries, weights, native code for one machine."""

MAX_RANK = 16
_NAME = Text(r"[^\x00-\x1f]{1,1024}")
_FILE_NAME = Text(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,4}")
_SIZE = OneOf((Count(), Text(r"[\w */%()+-]{1,1000}")))
_TENSOR: Shape = {
    "name": _NAME,
    "dtype": Text(r"f64|f32|f16|bf16|i64|i32|i16|i8|u8|bool"),
    "shape": ListOf(_SIZE, MAX_RANK),
    "strides": ListOf(_SIZE, MAX_RANK),
}
_TENSORS = ListOf(_TENSOR, 100_000)
ENTRY_SHAPE: Shape = {
    "name": _NAME,
    "inputs": _TENSORS,
    "weights": _TENSORS,
    "outputs": _TENSORS,
    "sizes": ListOf(
        {"name": Text(r"\w{1,100}"), "input": Count(100_000), "dimension": OneOf((Count(MAX_RANK), NOTHING))}, 10_000
    ),
}
MANIFEST_SHAPE: Shape = {
    "format": Text(FORMAT),
    "version": Count(1_000_000),
    "entries": ListOf(ENTRY_SHAPE, 1000),
    "libraries": ListOf(Text(r"[\w.-]{1,100}"), 10),
    "files": MapOf(_FILE_NAME, {"size": Count(), "sha256": Text(r"[0-9a-f]{64}")}, 1000),
}


@dataclass(frozen=True)
class TensorDescription:
    """An input, weight or output; a size that is text is an expression of the entry's dynamic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]

    @cached_property
    def fixed_layout(self) -> tuple[list[int], list[int]] | None:
        """Sizes and strides, if they are the same in every call."""
        numbers = [each for each in (*self.shape, *self.strides) if isinstance(each, int)]
        rank = len(self.shape)
        return (numbers[:rank], numbers[rank:]) if len(numbers) == 2 * rank else None


@dataclass(frozen=True)
class EntryDescription:
    """What one entry takes and gives."""

    name: str
    inputs: tuple[TensorDescription, ...]
    weights: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]


@dataclass(frozen=True)
class FileRecord:
    """Size and hash of one member of the archive."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The checked content of ``manifest.json``."""

    entries: tuple[EntryDescription, ...]
    libraries: tuple[str, ...]
    files: Mapping[str, FileRecord]


def parse_entry(text: str | bytes) -> EntryDescription:
    """An entry's description as the C interface gives it."""
    return _entry(parse_json(text, ENTRY_SHAPE, name="the entry's description"))


def parse_manifest(text: bytes) -> Manifest:
    """Read a manifest, refusing another format, another version, or anything out of shape."""
    head = parse_json(text, MapOf(Text(r"\w{1,100}"), ANYTHING, 100), name="manifest.json")
    assert isinstance(head, dict)
    if head.get("format") == FORMAT and head.get("version") != FORMAT_VERSION:
        raise ArtifactError(
            f"the file has format version {head.get('version')!r}",
            why=f"this runtime reads version {FORMAT_VERSION}",
            fix="package the model again, or install the version of Precast that made it",
        )
    content: Any = parse_json(text, MANIFEST_SHAPE, name="manifest.json")
    entries = tuple(map(_entry, content["entries"]))
    if len({entry.name for entry in entries}) != len(entries):
        raise damaged("two entries have one name", "names of entries must differ")
    files = {name: FileRecord(**record) for name, record in content["files"].items()}
    return Manifest(entries, tuple(content["libraries"]), files)


def manifest_text(entries: Sequence[Json], libraries: Sequence[str], files: Mapping[str, FileRecord]) -> bytes:
    """The manifest as it stands in the file; the same for the same content."""
    records = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(files.items())}
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "entries": list(entries),
        "libraries": list(libraries),
        "files": records,
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def _entry(content: Any) -> EntryDescription:
    tensors = {kind: tuple(map(_tensor, content[kind])) for kind in ("inputs", "weights", "outputs")}
    return EntryDescription(content["name"], **tensors)


def _tensor(content: Any) -> TensorDescription:
    if len(content["shape"]) != len(content["strides"]):
        raise damaged(
            f"tensor {content['name']!r} has another number of strides than of sizes", "each size has its stride"
        )
    return TensorDescription(content["name"], content["dtype"], tuple(content["shape"]), tuple(content["strides"]))
