"""The manifest of a file: version, entries, state, targets, and the size and hash of every member.

Also the inputs and outputs of an entry, as its library and the manifest describe them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from precast.artifact.calls import CallDescription, NumberResult, OutputResult, TensorLeaf, read_call
from precast.artifact.dtypes import DTYPES
from precast.artifact.schema import (
    ANYTHING,
    NOTHING,
    Count,
    Json,
    ListOf,
    MapOf,
    OneOf,
    Real,
    Shape,
    Text,
    check_shape,
    damaged,
    parse_json,
)
from precast.errors import ArtifactError

MAX_RANK = 16
MANY = 100_000
NAME = Text(r"[^\x00-\x1f]{1,1024}")
DTYPE = Text("|".join(DTYPES))
_SIZE = OneOf((Count(), Text(r"[\w */%()+,-]{1,1000}")))
_TENSOR: Shape = {
    "name": NAME,
    "dtype": DTYPE,
    "shape": ListOf(_SIZE, MAX_RANK),
    "strides": ListOf(_SIZE, MAX_RANK),
}
_TENSORS = ListOf(_TENSOR, MANY)
ENTRY_SHAPE: Shape = {
    "name": NAME,
    "inputs": _TENSORS,
    "weights": _TENSORS,
    "outputs": _TENSORS,
    "updates": _TENSORS,
    "sizes": ListOf(
        {
            "name": Text(r"\w{1,100}"),
            "input": Count(MANY),
            "dimension": OneOf((Count(MAX_RANK), NOTHING)),
            "factor": Count(),
            "offset": ANYTHING,
            "range": ListOf(OneOf((Count(), NOTHING)), 2),
        },
        10_000,
    ),
}


@dataclass(frozen=True)
class TensorDescription:
    """An input, weight or output; a size that is text is an expression of the entry's dynamic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @cached_property
    def fixed_layout(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Sizes and strides, if they are the same in every call."""
        numbers = tuple(each for each in (*self.shape, *self.strides) if isinstance(each, int))
        rank = len(self.shape)
        return (numbers[:rank], numbers[rank:]) if len(numbers) == 2 * rank else None


class EntryDescription(NamedTuple):
    """An entry's inputs and outputs, and the state that it updates."""

    name: str
    inputs: tuple[TensorDescription, ...]
    weights: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    updates: tuple[TensorDescription, ...] = ()
    # Whether sizes of outputs are data-dependent: they are known once the entry has run.
    finds_sizes: bool = False


def parse_entry(text: str | bytes, *, is_checked: bool = True) -> EntryDescription:
    """Parse an entry's description from the C interface; that of code built by this machine need not be checked."""
    content = parse_json(text, ENTRY_SHAPE, name="the entry's description") if is_checked else json.loads(text)
    return entry_description(content)


def entry_description(content: Any) -> EntryDescription:
    """An entry from checked data."""
    tensors = {kind: tuple(map(_tensor, content[kind])) for kind in ("inputs", "weights", "outputs", "updates")}
    given = {"max", "min", *(size["name"] for size in content["sizes"])}
    texts = [size for each in tensors["outputs"] for size in each.shape if isinstance(size, str)]
    finds_sizes = any(name not in given for text in texts for name in re.findall(r"[^\W\d]\w*", text))
    return EntryDescription(content["name"], **tensors, finds_sizes=finds_sizes)


def _tensor(content: Any) -> TensorDescription:
    if len(content["shape"]) != len(content["strides"]):
        raise damaged(
            f"tensor {content['name']!r} has another number of strides than of sizes", "each size has its stride"
        )
    return TensorDescription(content["name"], content["dtype"], tuple(content["shape"]), tuple(content["strides"]))


FORMAT = "precast"
FORMAT_VERSION = 2
GPU_VERSION = 3
"""The format version of files with code for GPUs: older runtimes must not mistake it for a processor's."""
"""Version log: 1 (2026-11) the first: members and their hashes, as exported programs have them. 2 (2026-11): entries
with their calls, programs and samples, the model's state, targets with the processor features that they need.
3 (2026-11): targets may be GPUs, ``cuda:sm_90``; files without them are still of version 2."""
READABLE_VERSIONS = (1, 2, 3)

_FILE_NAME = Text(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,4}")
_FILES = MapOf(_FILE_NAME, {"size": Count(), "sha256": Text(r"[0-9a-f]{64}")}, 1000)
_LIBRARIES = ListOf(Text(r"[\w.-]{1,100}"), 10)
_SAMPLE: Shape = {
    "inputs": ListOf(OneOf((NAME, Count())), MANY),
    "outputs": ListOf({"tensor": NAME, "tolerance": Real()}, MANY),
}
_PACKED_ENTRY: Shape = {
    "interface": ENTRY_SHAPE,
    "call": ANYTHING,
    "program": OneOf((_FILE_NAME, NOTHING)),
    "state_names": MapOf(NAME, NAME, MANY),
    "samples": ListOf(_SAMPLE, 1000),
}
_STATE: Shape = {
    "storage": NAME,
    "dtype": DTYPE,
    "shape": ListOf(Count(2**48), MAX_RANK),
    "strides": ListOf(Count(2**48), MAX_RANK),
    "offset": Count(2**48),
}
_TARGET: Shape = {
    "name": Text(r"[a-z0-9][a-z0-9._-]{0,60}|cuda:sm_[0-9]{2,3}"),
    "file": OneOf((_FILE_NAME, NOTHING)),
    "features": ListOf(Text(r"[a-z0-9_]{1,40}"), 300),
}
_MANIFEST: dict[str, Shape] = {
    "format": Text(FORMAT),
    "version": Count(1_000_000),
    "entries": ListOf(_PACKED_ENTRY, 1000),
    "state": MapOf(NAME, _STATE, MANY),
    "targets": ListOf(_TARGET, 20),
    "libraries": _LIBRARIES,
    "made_with": MapOf(Text(r"[a-z_]{1,40}"), Text(r"[^\x00-\x1f]{0,200}"), 20),
    "files": _FILES,
}
MANIFEST_SHAPE: Shape = _MANIFEST
_FIRST_VERSION: Shape = {
    "format": Text(FORMAT),
    "version": Count(1_000_000),
    "entries": ListOf(ANYTHING, 0),
    "libraries": _LIBRARIES,
    "files": _FILES,
}


class SampleOutput(NamedTuple):
    """An expected output: its stored tensor, and its tolerance."""

    tensor: str
    tolerance: float


class Sample(NamedTuple):
    """Inputs for an entry: names of stored tensors, or integers; and the expected outputs."""

    inputs: tuple[str | int, ...]
    outputs: tuple[SampleOutput, ...]


class PackedEntry(NamedTuple):
    """One entry of a file.

    ``call`` is the original signature; an entry without one takes and returns flat tensors. ``program`` names the
    member that holds the exported program, whose own names for the state ``state_names`` maps to the model's.
    """

    interface: EntryDescription
    call: CallDescription | None = None
    program: str | None = None
    state_names: Mapping[str, str] = MappingProxyType({})
    samples: tuple[Sample, ...] = ()

    @property
    def name(self) -> str:
        return self.interface.name


class StateRecord(NamedTuple):
    """Where a tensor of the model's state is stored: in which weight, at which offset, with which strides."""

    storage: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Target(NamedTuple):
    """Native code for processors that have all of these features; without a file, it contains the manifest itself."""

    name: str
    file: str | None
    features: tuple[str, ...]


class FileRecord(NamedTuple):
    """Size and hash of one member of the archive."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """The checked content of ``manifest.json``."""

    entries: tuple[PackedEntry, ...]
    libraries: tuple[str, ...]
    files: Mapping[str, FileRecord]
    state: Mapping[str, StateRecord] = MappingProxyType({})
    targets: tuple[Target, ...] = ()
    made_with: Mapping[str, str] = MappingProxyType({})


def parse_manifest(text: str | bytes) -> Manifest:
    """Read a manifest, refusing other formats, other versions, and anything malformed."""
    head = parse_json(text, MapOf(Text(r"\w{1,100}"), ANYTHING, 100), name="manifest.json")
    assert isinstance(head, dict)
    version = head.get("version")
    if head.get("format") == FORMAT and (type(version) is not int or version not in READABLE_VERSIONS):
        raise ArtifactError(
            f"the file has format version {str(version)[:40]}",
            why=f"this runtime reads versions {' and '.join(map(str, READABLE_VERSIONS))}",
            fix="package the model again, or install the version of Precast that made it",
        )
    content: Any = head
    check_shape(content, _FIRST_VERSION if version == 1 else MANIFEST_SHAPE, "manifest.json")
    manifest = Manifest(
        tuple(map(_entry, content["entries"])),
        tuple(content["libraries"]),
        {name: FileRecord(**record) for name, record in content["files"].items()},
        {name: _state(name, record) for name, record in content.get("state", {}).items()},
        tuple(Target(each["name"], each["file"], tuple(each["features"])) for each in content.get("targets", [])),
        content.get("made_with", {}),
    )
    _check_names(manifest)
    return manifest


def manifest_text(
    files: Mapping[str, FileRecord],
    *,
    entries: Sequence[Json] = (),
    state: Mapping[str, Json] | None = None,
    targets: Sequence[Json] = (),
    libraries: Sequence[str] = (),
    made_with: Mapping[str, str] | None = None,
) -> bytes:
    """The text of the manifest in the file, deterministic for equal content."""
    is_for_gpus = any(isinstance(each, dict) and str(each["name"]).startswith("cuda:") for each in targets)
    records = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(files.items())}
    content = {
        "format": FORMAT,
        "version": GPU_VERSION if is_for_gpus else FORMAT_VERSION,
        "entries": list(entries),
        "state": dict(state or {}),
        "targets": list(targets),
        "libraries": list(libraries),
        "made_with": dict(made_with or {}),
        "files": records,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode()


def packed_entry(interface: Json, **parts: Json) -> Json:
    """An entry in the form of the manifest; parts are those of ``PackedEntry``."""
    empty: dict[str, Json] = {"call": None, "program": None, "state_names": {}, "samples": []}
    return {"interface": interface, **empty, **parts}


def _check_names(manifest: Manifest) -> None:
    for what, names in (
        ("entries", [entry.name for entry in manifest.entries]),
        ("targets", [target.name for target in manifest.targets]),
    ):
        if len(set(names)) != len(names):
            raise damaged(f"two {what} have one name", f"names of {what} must differ")
    for name in (*(target.file for target in manifest.targets), *(entry.program for entry in manifest.entries)):
        if name is not None and name not in manifest.files:
            raise damaged(f"the manifest refers to {name}", "it does not list such a file")
    for entry in manifest.entries:
        for weight in (*entry.interface.weights, *entry.interface.updates):
            record = manifest.state.get(weight.name)
            if record is None or (weight.dtype, weight.shape) != (record.dtype, record.shape):
                raise damaged(
                    f"entry {entry.name!r} uses the state {weight.name!r}",
                    "the manifest has no such state of that shape",
                )


def _entry(content: Any) -> PackedEntry:
    interface = entry_description(content["interface"])
    call = None if content["call"] is None else read_call(content["call"], name=f"the call of {interface.name!r}")
    entry = PackedEntry(
        interface, call, content["program"], content["state_names"], tuple(map(_sample, content["samples"]))
    )
    if call is not None:
        _check_call(interface, call)
    return entry


def _check_call(interface: EntryDescription, call: CallDescription) -> None:
    """Check that a call passes exactly what the entry takes, and reads only what it returns."""
    at = f"the call of {interface.name!r}"
    given = [call.leaves[number] for number in call.tensor_leaves]
    if len(given) != len(interface.inputs):
        raise damaged(f"{at} has {len(given)} tensors", f"the entry takes {len(interface.inputs)}")
    for leaf, expected in zip(given, interface.inputs, strict=True):
        rank = len(leaf.shape) if isinstance(leaf, TensorLeaf) else 0
        dtype = leaf.dtype if isinstance(leaf, TensorLeaf) else "i64"
        if (dtype, rank) != (expected.dtype, len(expected.shape)):
            raise damaged(f"{at} takes another tensor for {expected.name!r} than the entry", "dtypes or ranks differ")
        sizes = zip(leaf.shape, expected.shape, strict=True) if isinstance(leaf, TensorLeaf) else ()
        for promised, size in sizes:
            if (isinstance(promised, int) or isinstance(size, int)) and promised != size:
                raise damaged(
                    f"{at} takes another size of {expected.name!r} than the entry", f"{promised} is not {size}"
                )
    numbers = [each.number for each in call.results if isinstance(each, OutputResult | NumberResult)]
    numbers += [output for output, _ in call.updates]
    if any(number >= len(interface.outputs) for number in numbers):
        raise damaged(f"{at} asks for an output that the entry does not return", f"it returns {len(interface.outputs)}")
    for each in call.results:
        if isinstance(each, NumberResult) and interface.outputs[each.number].shape:
            raise damaged(f"{at} returns a tensor as a number", f"output {each.number} has dimensions")


def _sample(content: Any) -> Sample:
    outputs = tuple(SampleOutput(each["tensor"], float(each["tolerance"])) for each in content["outputs"])
    return Sample(tuple(content["inputs"]), outputs)


def _state(name: str, record: Any) -> StateRecord:
    if len(record["shape"]) != len(record["strides"]):
        raise damaged(f"the state {name!r} has another number of strides than of sizes", "each size has its stride")
    shape, strides = tuple(record["shape"]), tuple(record["strides"])
    return StateRecord(record["storage"], record["dtype"], shape, strides, record["offset"])
