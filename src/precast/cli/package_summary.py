"""Summarizes a ``.precast`` file, without torch and without running anything in it."""

from pathlib import Path
from typing import Any

from precast.artifact.calls import SizeSymbol, size_identifier
from precast.artifact.manifest import PackedEntry, Target
from precast.artifact.package import Package
from precast.artifact.signatures import SUFFIX
from precast.runtime.gpu.open import features_for


def summary_of(package: Package, path: Path) -> dict[str, Any]:
    """A summary of the manifest."""
    manifest = package.manifest
    stored = {record.storage for record in manifest.state.values()}
    return {
        "made with": [f"{name} {version}" for name, version in manifest.made_with.items()],
        "bytes": path.stat().st_size,
        "signed": Path(f"{path}{SUFFIX}").exists(),
        "targets": [_target(target) for target in manifest.targets],
        "libraries": list(manifest.libraries),
        "state": len(manifest.state),
        "stored weights": len(stored),
        "files": {name: record.size for name, record in manifest.files.items()},
        "entries": {entry.name: _entry(entry) for entry in manifest.entries},
    }


def _target(target: Target) -> dict[str, Any]:
    missing = sorted(set(target.features) - features_for(target))
    return {"name": target.name, "runs here": not missing, "missing": missing}


def _entry(entry: PackedEntry) -> dict[str, Any]:
    interface = entry.interface
    sizes = () if entry.call is None else entry.call.symbols
    return {
        "inputs": list(map(str, interface.inputs)),
        "outputs": list(map(str, interface.outputs)),
        "updates": list(map(str, interface.updates)),
        "sizes": [f"{size_identifier(size.name)}: {_range(size)}" for size in sizes],
        "samples": len(entry.samples),
    }


def _range(size: SizeSymbol) -> str:
    return f"{size.lower} or more" if size.upper is None else f"{size.lower} to {size.upper}"
