"""A package's code for a GPU: programs as JSON, then the cubins of their kernels, concatenated.

``length of the JSON, 8 bytes · JSON · cubins``
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precast.artifact.gpu_programs import (
    Call,
    GpuProgram,
    Launch,
    RepeatPart,
    RunPart,
    program_from_json,
    program_to_json,
)
from precast.artifact.manifest import ENTRY_SHAPE, EntryDescription, entry_description
from precast.artifact.schema import ANYTHING, Count, Json, ListOf, MapOf, Shape, Text, damaged, parse_json

VERSION = 1
_LENGTH = 8
_NAME = Text(r"[^\x00-\x1f]{1,1024}")
_SHAPE: Shape = {
    "version": Count(VERSION),
    "architecture": Count(1000),
    "cuda": Count(100),
    "tf32": Count(1),
    "kernels": ListOf(
        {
            "symbol": Text(r"\w{1,500}"),
            "shared": Count(2**20),
            "warps": Count(32),
            "parameters": Count(4096),
            "offset": Count(2**40),
            "size": Count(2**30),
        },
        100_000,
    ),
    "entries": ListOf({"interface": ENTRY_SHAPE, "program": ANYTHING, "updates": MapOf(_NAME, Count(), 100_000)}, 1000),
}


@dataclass(frozen=True)
class PackedKernel:
    """Machine code of a kernel, and its launch parameters."""

    symbol: str
    shared: int
    warps: int
    parameters: int
    code: bytes


@dataclass(frozen=True)
class GpuCodeEntry:
    """A program, its inputs and outputs, and which of its outputs are new values of which state."""

    interface: Json
    program: GpuProgram
    updates: dict[str, int]

    @property
    def description(self) -> EntryDescription:
        return entry_description(self.interface)


@dataclass(frozen=True)
class PackedGpuCode:
    """All code for one kind of GPU. `cuda`: the major version of the CUDA that built it.

    `tf32`: whether single-precision GEMMs and convolutions may round their operands to TF32.
    """

    architecture: int
    cuda: int
    tf32: bool
    kernels: tuple[PackedKernel, ...]
    entries: tuple[GpuCodeEntry, ...]

    @property
    def routines(self) -> frozenset[str]:
        """The library routines that are called."""
        programs = (program for entry in self.entries for program in _every(entry.program))
        return frozenset(step.routine for program in programs for step in program.steps if isinstance(step, Call))


def _every(program: GpuProgram) -> Iterator[GpuProgram]:
    """A program and all of its nested parts."""
    yield program
    for step in program.steps:
        if isinstance(step, RunPart | RepeatPart):
            for part in step.parts:
                yield from _every(part)


def _launches(program: GpuProgram) -> list[Launch]:
    return [step for step in program.steps if isinstance(step, Launch)]


def gpu_code_to_bytes(code: PackedGpuCode) -> bytes:
    """Serialize code for `gpu_code_from_bytes`."""
    kernels, offset = list[Json](), 0
    for each in code.kernels:
        place: dict[str, Json] = {"offset": offset, "size": len(each.code)}
        shape: dict[str, Json] = {"shared": each.shared, "warps": each.warps, "parameters": each.parameters}
        kernels.append({"symbol": each.symbol, **shape, **place})
        offset += len(each.code)
    document: dict[str, Any] = {
        "version": VERSION,
        "architecture": code.architecture,
        "cuda": code.cuda,
        "tf32": int(code.tf32),
        "kernels": kernels,
        "entries": [
            {"interface": each.interface, "program": program_to_json(each.program), "updates": each.updates}
            for each in code.entries
        ],
    }
    head = json.dumps(document, separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *(each.code for each in code.kernels)])


def gpu_code_from_bytes(data: bytes) -> PackedGpuCode:
    """Deserialize code, checking its structure."""
    length = int.from_bytes(data[:_LENGTH], "little")
    if _LENGTH + length > len(data):
        raise damaged("code for a GPU is cut off", "it is shorter than it says")
    content: Any = parse_json(data[_LENGTH : _LENGTH + length], _SHAPE, name="code for a GPU")
    cubins = data[_LENGTH + length :]
    try:
        entries = tuple(
            GpuCodeEntry(each["interface"], program_from_json(each["program"]), each["updates"])
            for each in content["entries"]
        )
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise damaged("a program for a GPU is malformed", f"{type(problem).__name__}: {problem}") from problem
    kernels = tuple(_kernel(each, cubins) for each in content["kernels"])
    launched = {step.kernel for entry in entries for program in _every(entry.program) for step in _launches(program)}
    if not launched <= set(range(len(kernels))):
        raise damaged("a program for a GPU is malformed", "it launches kernels that do not exist")
    return PackedGpuCode(content["architecture"], content["cuda"], bool(content["tf32"]), kernels, entries)


def _kernel(content: Any, cubins: bytes) -> PackedKernel:
    start, end = content["offset"], content["offset"] + content["size"]
    if end > len(cubins):
        raise damaged("code for a GPU is cut off", f"the kernel {content['symbol']} ends behind it")
    shape = (content["shared"], content["warps"], content["parameters"])
    return PackedKernel(content["symbol"], *shape, cubins[start:end])
