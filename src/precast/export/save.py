"""Writes an exported program to one file."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from precast.artifact.archive import Content, is_member_name, write_archive, write_members
from precast.artifact.manifest import manifest_text
from precast.artifact.package import MANIFEST, file_record
from precast.artifact.weights import weight_pieces
from precast.errors import InputTypeError, InputValueError
from precast.export.program import ExportedProgram
from precast.export.serialize import schema
from precast.export.serialize.document import to_document
from precast.export.torch_files.convert import from_torch, is_torch_program

FileLike = str | os.PathLike[str] | BinaryIO


def save(
    ep: ExportedProgram,
    f: FileLike,
    *,
    extra_files: Mapping[str, str] | None = None,
    opset_version: Mapping[str, int] | None = None,
    pickle_protocol: int = 2,
) -> None:
    """Write a program with its state and example inputs to a path or an open binary file.

    Writing to a path is atomic. ``extra_files`` are texts to store with the program, by name. ``pickle_protocol`` is
    accepted for compatibility with PyTorch: nothing is pickled.

    >>> import io, torch
    >>> from precast.export import export, load
    >>> file = io.BytesIO()
    >>> save(export(torch.nn.ReLU(), (torch.ones(2),)), file, extra_files={"notes.txt": "a rectifier"})
    >>> load(file).module()(torch.tensor([-1.0, 1.0]))
    tensor([0., 1.])
    """
    if is_torch_program(ep):
        ep = from_torch(ep)
    if not isinstance(ep, ExportedProgram):
        raise InputTypeError(
            f"save() was given an object of type {type(ep).__name__}.",
            why="what is saved is an exported program",
            fix="Export the module first: save(export(module, args), path).",
        )
    members = _members(ep, extra_files or {}, opset_version)
    if isinstance(f, (str, os.PathLike)):
        write_archive(Path(f), members)
    elif hasattr(f, "write") and f.seekable():
        write_members(f, members)
    elif hasattr(f, "write"):
        whole = io.BytesIO()
        write_members(whole, members)
        f.write(whole.getbuffer())
    else:
        raise InputTypeError(
            f"save() was given an object of type {type(f).__name__} to write to.",
            why="a program is written to a path or to an open binary file",
            fix="Pass a path, or open(path, 'wb').",
        )


def _members(
    ep: ExportedProgram, extra_files: Mapping[str, str], opset_version: Mapping[str, int] | None
) -> dict[str, Content]:
    document = to_document(ep, opset=opset_version)
    text = json.dumps(document.content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    members: dict[str, Content] = {schema.PROGRAM: text.encode()}
    members |= {f"{name}.safetensors": weight_pieces(weights) for name, weights in document.members.items()}
    members |= {f"{schema.EXTRA_FILES}{name}": _checked(name, text) for name, text in extra_files.items()}
    records = {name: file_record(content) for name, content in members.items()}
    return {MANIFEST: manifest_text(records), **members}


def _checked(name: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise InputTypeError(
            f"The extra file {name!r} is of type {type(text).__name__}.",
            why="extra files are texts",
            fix="Pass a str; encode other data, for example with base64.",
        )
    if not is_member_name(f"{schema.EXTRA_FILES}{name}"):
        raise InputValueError(
            f"{name!r} cannot name an extra file.",
            why="names are plain relative paths of letters, digits, '_', '.' and '-'",
            fix="Choose such a name, for example 'notes/readme.txt'.",
        )
    return text.encode()
