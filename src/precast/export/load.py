"""Reads an exported program from a file; everything is checked before it is used."""

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

from precast.artifact.archive import check_member, is_torch_archive
from precast.artifact.package import Package, file_bytes, naming_file, package_of
from precast.artifact.schema import ANYTHING, MapOf, Text, check_shape, damaged, parse_json
from precast.artifact.weights import Weight, read_weights
from precast.errors import ArtifactError, PrecastError
from precast.export.program import ExportedProgram
from precast.export.save import FileLike
from precast.export.serialize import schema
from precast.export.serialize.document import from_document
from precast.export.torch_files.file import TorchFile

# What torch and sympy raise for inconsistent sizes, dtypes or arguments.
NONSENSE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, OverflowError, AssertionError,
             ArithmeticError, NotImplementedError, RecursionError, SyntaxError, MemoryError)  # fmt: skip


T = TypeVar("T")


def load(
    f: FileLike,
    *,
    extra_files: MutableMapping[str, str] | None = None,
    expected_opset_version: Mapping[str, int] | None = None,
    check_weights: bool = True,
    copy: bool = False,
) -> ExportedProgram:
    """Read an exported program from a path or an open binary file.

    The texts named in ``extra_files`` are filled in; an empty dict receives all of them. The SHA-256 of weights is
    checked unless ``check_weights`` is false; that of the program is always checked.

    Files written by PyTorch's exporter can be read as well.

    A file given by path is memory-mapped: weights are read when they are used, and changing them does not change the
    file. Do not truncate or overwrite the file while the program is in use, or pass ``copy=True`` to read it once.
    """
    is_path = isinstance(f, (str, os.PathLike))
    with naming_file(f):
        data = file_bytes(Path(f), writable=True, copy=copy) if is_path else _bytes(f)  # type: ignore[arg-type]
        if is_torch_archive(data):
            texts, exported = as_sound(lambda: _read_torchs(data, expected_opset_version or {}))
        else:
            package = package_of(data)
            texts = _extra_files(package)
            exported = program_in(package, expected_opset_version=expected_opset_version, check_weights=check_weights)
    if extra_files is not None:
        _fill(extra_files, texts)
    return exported


def program_in(
    package: Package,
    *,
    member: str = schema.PROGRAM,
    expected_opset_version: Mapping[str, int] | None = None,
    check_weights: bool = True,
) -> ExportedProgram:
    """The program that a member of an open file describes, over writable memory."""
    content = _document(package, member)
    _check_opset(content["opset"], expected_opset_version or {})
    members = {
        name: _weights(package, f"{name}.safetensors", check=check_weights)
        for name in schema.TENSOR_MEMBERS
        if f"{name}.safetensors" in package.members
    }
    return as_sound(lambda: from_document(content, members))


def _read_torchs(data: memoryview, expected_opset_version: Mapping[str, int]) -> tuple[dict[str, str], ExportedProgram]:
    file = TorchFile.read(data)
    _check_opset(file.opset, expected_opset_version)
    return file.extra_files, file.program()


def as_sound(make: Callable[[], T]) -> T:
    """The result of ``make``; any failure is reported as a damaged file."""
    try:
        return make()
    except ArtifactError:
        raise
    except (*NONSENSE, PrecastError) as problem:
        raise damaged("the file does not describe a valid program", f"{type(problem).__name__}: {problem}") from problem


def _bytes(file: Any) -> memoryview:
    if not hasattr(file, "read"):
        raise ArtifactError(
            f"load() was given an object of type {type(file).__name__}",
            why="a program is read from a path or from an open binary file",
            fix="pass a path, or open(path, 'rb')",
        )
    file.seek(0)
    return memoryview(bytearray(file.read()))


def _document(package: Package, member: str) -> Any:
    if member in package.members and len(package.members[member]) > schema.MAX_PROGRAM:
        raise damaged(f"{member} is too large", f"at most {schema.MAX_PROGRAM} bytes are allowed")
    text = package.checked(member)
    head: Any = parse_json(text, MapOf(Text(r"\w{1,100}"), ANYTHING, 100), name=member)
    version = head.get("version")
    if head.get("format") == schema.FORMAT and isinstance(version, list) and version[:1] != [schema.MAJOR]:
        raise ArtifactError(
            f"the program has format version {version}",
            why=f"this version of Precast reads version {schema.MAJOR}",
            fix="export the module again, or install the version of Precast that made the file",
        )
    known = schema.ADDED | {key: value for key, value in head.items() if key in schema.PROGRAM_KEYS}
    check_shape(known, schema.PROGRAM_SHAPE, member)
    return known


def _check_opset(opset: Mapping[str, int], expected: Mapping[str, int]) -> None:
    for namespace, version in expected.items():
        if opset.get(namespace) != version:
            raise ArtifactError(
                f"the program uses version {opset.get(namespace)} of the operators {namespace!r}",
                why=f"version {version} was asked for",
                fix="export the module again, or leave out expected_opset_version",
            )


def _weights(package: Package, name: str, *, check: bool) -> dict[str, Weight]:
    content = package.members[name]
    record = package.manifest.files[name]
    if check:
        check_member(name, content, record.size, record.sha256)
    if len(content) != record.size:
        raise damaged(f"{name} has {len(content)} bytes", f"the manifest says {record.size}")
    return read_weights(content)


def _extra_files(package: Package) -> dict[str, str]:
    names = [name for name in package.members if name.startswith(schema.EXTRA_FILES)]
    try:
        return {name.removeprefix(schema.EXTRA_FILES): package.checked(name).decode() for name in names}
    except UnicodeDecodeError as problem:
        raise damaged("an extra file is not text", str(problem)) from problem


def _fill(extra_files: MutableMapping[str, str], texts: Mapping[str, str]) -> None:
    for name in list(extra_files) or list(texts):
        if name not in texts:
            raise ArtifactError(
                f"the file holds no extra file {name!r}",
                why=f"it holds {', '.join(sorted(texts)) or 'none'}",
                fix="ask for one of these, or pass an empty dict to get all",
            )
        extra_files[name] = texts[name]
