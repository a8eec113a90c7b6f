"""A model's file: manifest, native code and weights, written and opened."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.artifact.archive import check_member, read_archive, write_archive
from precast.artifact.manifest import FileRecord, Manifest, manifest_text, parse_manifest
from precast.artifact.schema import Json, damaged
from precast.artifact.weights import Weight, read_weights, write_weights
from precast.errors import ArtifactError

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
MAX_MANIFEST = 64 * 1024 * 1024


def native_member(target: str) -> str:
    return f"native/{target}/model.so"


@dataclass(frozen=True)
class Package:
    """An opened file: the manifest is checked, members are checked when asked for."""

    manifest: Manifest
    members: Mapping[str, memoryview]

    def checked(self, name: str) -> bytes:
        """A copy of a member, checked after copying: what is returned is what was checked."""
        record = self._record(name)
        if len(self.members[name]) != record.size:
            raise damaged(f"{name} has {len(self.members[name])} bytes", f"the manifest says {record.size}")
        content = bytes(self.members[name])
        check_member(name, content, record.size, record.sha256)
        return content

    def weights(self) -> dict[str, Weight]:
        """Weights mapped in place. Their layout is checked here, their content by `verify`: loading stays quick."""
        if WEIGHTS not in self.members:
            return {}
        record, content = self._record(WEIGHTS), self.members[WEIGHTS]
        if len(content) != record.size:
            raise damaged(f"{WEIGHTS} has {len(content)} bytes", f"the manifest says {record.size}")
        return read_weights(content)

    def verify(self) -> None:
        """Check the hash of every member."""
        for name in self.manifest.files:
            record = self._record(name)
            check_member(name, self.members[name], record.size, record.sha256)

    def _record(self, name: str) -> FileRecord:
        if name not in self.manifest.files or name not in self.members:
            raise damaged(f"the file has no {name}", "the manifest and the archive must both name it")
        return self.manifest.files[name]


def write_package(
    path: Path,
    *,
    entries: Sequence[Json],
    code: Mapping[str, bytes],
    weights: Mapping[str, Weight],
    libraries: Sequence[str] = (),
) -> Path:
    """Write a model's file; `code` is the native library for each target."""
    members: dict[str, bytes] = {native_member(target): code[target] for target in sorted(code)}
    if weights:
        members[WEIGHTS] = write_weights(weights)
    files = {name: FileRecord(len(content), hashlib.sha256(content).hexdigest()) for name, content in members.items()}
    write_archive(path, {MANIFEST: manifest_text(entries, libraries, files), **members})
    return path


def open_package(source: Path | bytes | memoryview) -> Package:
    """Map a file, or take its bytes, and check its structure and manifest."""
    members = read_archive(_mapped(source) if isinstance(source, Path) else memoryview(source))
    if MANIFEST not in members or len(members[MANIFEST]) > MAX_MANIFEST:
        raise damaged("the file has no manifest", f"{MANIFEST} is missing or too large")
    package = Package(parse_manifest(bytes(members[MANIFEST])), members)
    unknown = set(members) - set(package.manifest.files) - {MANIFEST}
    if unknown:
        raise damaged(f"the file holds {', '.join(sorted(unknown))}", "the manifest does not name it")
    return package


def _mapped(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as problem:
        raise ArtifactError(f"{path} cannot be read", why=str(problem), fix="check the path and the file") from problem
