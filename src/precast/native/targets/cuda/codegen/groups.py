"""Horizontally fused kernels as one Triton kernel: each block belongs to one member.

Before: casts of 16 weights of different sizes
After::

    block = tl.program_id(0)
    if block < e0:
        part(p0_0, p1_0, n0_0, block)
    elif block < e1:
        part(p0_1, p1_1, n0_1, block - e0)
    …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precast.native.loops.buffers import Buffer
from precast.native.loops.canonical import pattern_of
from precast.native.loops.index import Index, floor_divide, product
from precast.native.loops.program import KernelGroup, Loop
from precast.native.targets.cuda.codegen.nests import NestWriter
from precast.native.targets.cuda.codegen.tiling import Tiling
from precast.native.targets.cuda.codegen.types import POINTER_TYPES

BLOCK = 1024
ALIGNED = "i64:16"
"""The type of a size that is a multiple of 16: 16 elements at a time are then loaded."""


@dataclass(frozen=True)
class GroupText:
    """A group's functions, and its launch arguments."""

    lines: list[str]
    parameters: list[str]
    signature: tuple[str, ...]
    programs: Index
    buffers: tuple[Buffer, ...]
    sizes: tuple[Index, ...]


def write_group(group: KernelGroup, name: str) -> GroupText:
    """Print a group; its parameters are pointers, member by member, then sizes, then the last block of each member."""
    patterns = [pattern_of(member) for member in group.members]
    writer = NestWriter(patterns[0].kernel, Tiling(BLOCK, warps=4), block="block")
    part = writer.write()
    own = [*writer.pointers.values(), *(f"n{number}" for number in range(len(writer.sizes)))]
    ends: list[Index] = []
    for member in group.members:
        (loop,) = member.body
        assert isinstance(loop, Loop), "members are loops"
        count = product(variable.extent for variable in loop.variables)
        blocks = floor_divide(count + (BLOCK - 1), BLOCK)
        ends.append(blocks + ends[-1] if ends else blocks)
    lines = ["", "@triton.jit", f"def part({', '.join([*own, 'block'])}):", *part, "", "", "@triton.jit"]
    pointers = [f"{each}_{number}" for number in range(len(patterns)) for each in writer.pointers.values()]
    sizes = [f"n{each}_{number}" for number in range(len(patterns)) for each in range(len(writer.sizes))]
    limits = [f"e{number}" for number in range(len(patterns) - 1)]
    parameters = [*pointers, *sizes, *limits]
    lines += [f"def {name}({', '.join(parameters)}):", "    block = tl.program_id(0).to(tl.int64)"]
    for number in range(len(patterns)):
        is_last = number == len(patterns) - 1
        before = f" - e{number - 1}" if number else ""
        arguments = [f"{each}_{number}" for each in own]
        # A flat sequence, not nested: Triton's parser is recursive.
        condition = f"block < e{number}" if not number else f"(block >= e{number - 1})"
        condition += "" if is_last or not number else f" & (block < e{number})"
        lines += [f"    if {condition}:", f"        part({', '.join([*arguments, f'block{before}'])})"]
    values = tuple(size for pattern in patterns for size in pattern.sizes)
    types = tuple(POINTER_TYPES[buffer.dtype] for pattern in patterns for buffer in pattern.buffers)
    types += (_size_type(values),) * len(sizes) + ("i64",) * len(limits)
    buffers = tuple(buffer for pattern in patterns for buffer in pattern.buffers)
    return GroupText(lines, parameters, types, ends[-1], buffers, (*values, *ends[:-1]))


def _size_type(sizes: Sequence[Index]) -> str:
    are_aligned = all(size.constant is not None and size.constant % 16 == 0 for size in sizes)
    return ALIGNED if are_aligned and sizes else "i64"
