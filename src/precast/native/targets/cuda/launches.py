"""A program for a GPU as data: kernels, where tensors are, and what is launched and called in which order.

Numbers that depend on sizes are expressions of them, so that one description serves all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from precast.native.loops.index import Index
from precast.native.loops.program import Finish, SizeSource


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel to compile. `signature` are the types of its parameters: pointers, then sizes."""

    name: str
    text: str
    signature: tuple[str, ...]
    warps: int
    asserts: bool = False
    """Whether it may stop the device with a message."""


@dataclass(frozen=True)
class Place:
    """A tensor's memory: input or output number `number`, or, from `offset` on, the arena, or memory of torch's."""

    kind: str
    number: int
    offset: Index
    dtype: str
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]


@dataclass(frozen=True)
class Launch:
    """Run kernel number `kernel` as `programs` programs, over places by their numbers, and sizes."""

    kernel: int
    programs: Index
    places: tuple[int, ...]
    sizes: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Window:
    """A strided view of a place."""

    place: int
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@dataclass(frozen=True)
class Call:
    """Run a routine of a library."""

    routine: str
    inputs: tuple[Window, ...]
    outputs: tuple[Window, ...]
    numbers: tuple[Index, ...] = ()
    epilogue: tuple[Finish, ...] = ()


@dataclass(frozen=True)
class CallBack:
    """Run operator number `number` of those that torch runs, on whole places."""

    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RunPart:
    """Run one of the `parts`: the second if the bool at place `choice` is true, else the first, or the only one."""

    parts: tuple[GpuProgram, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    choice: int | None


@dataclass(frozen=True)
class RepeatPart:
    """Run the first part `count` times, or while the second says so; see ``loops.program.Repeat``."""

    parts: tuple[GpuProgram, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    carried: int
    scanned: int
    count: Index | None


Step = Launch | Call | CallBack | RunPart | RepeatPart


@dataclass(frozen=True)
class GpuProgram:
    """All that one call does. `inputs` and `outputs` are places by their numbers.

    `written` are those of the inputs that it writes into; `dead` are, for each step, places that torch made and that
    nobody reads afterwards.
    """

    name: str
    places: tuple[Place, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: frozenset[int]
    sizes: tuple[SizeSource, ...]
    arena_size: Index
    steps: tuple[Step, ...]
    dead: tuple[tuple[int, ...], ...]
    weights: tuple[str | None, ...]
    """For each input, its name among the constants, or None if it is passed at each call."""
    by_torch: frozenset[int] = frozenset()
    """Places whose memory torch allocates, since operators of its own write them."""
