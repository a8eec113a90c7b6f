"""Routines that packages have as kernels, since no library of NVIDIA's has them: cumulative sums, attention.

Each is generated for the call's own sizes and strides. Dynamic ones are parameters.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

from precast.artifact.dtypes import DTYPES
from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index, constant, floor_divide, product
from precast.native.loops.program import LibraryCall, Step
from precast.native.loops.routines import SCAN_KINDS
from precast.native.targets.cuda.codegen.types import POINTER_TYPES
from precast.native.targets.cuda.kernel_source import KernelSource

KERNELS = frozenset({"attention", "scan"})
"""Routines that are kernels here."""
_LONGEST_BLOCK = 1024
_WIDEST_HEAD = 128


def takes_routine(step: Step) -> bool:
    """Whether there is a kernel for a call of one of these routines."""
    if not isinstance(step, LibraryCall) or step.routine not in KERNELS:
        return True
    if step.routine == "scan":
        return SCAN_KINDS[step.numbers[1].constant or 0] in ("sum", "prod")
    depth = step.inputs[0].shape[-1].constant
    return depth is not None and 0 < depth <= _WIDEST_HEAD


@dataclass
class RoutineText:
    """A kernel, its number of programs, and its launch arguments."""

    source: KernelSource
    programs: Index
    buffers: tuple[Buffer, ...]
    sizes: tuple[Index, ...]


@dataclass
class _Writer:
    """Collects parameters and lines of a kernel over some views."""

    name: str
    views: tuple[View, ...]
    lines: list[str] = field(default_factory=list)
    sizes: list[Index] = field(default_factory=list)

    def number(self, index: Index) -> str:
        """A literal, or a parameter."""
        if index.constant is not None:
            return str(index.constant)
        if index not in self.sizes:
            self.sizes.append(index)
        return f"n{self.sizes.index(index)}"

    def place(self, view: View, subscripts: list[str]) -> str:
        """The pointer to an element of a view."""
        terms = [self.number(view.offset)]
        terms += [f"({at}) * {self.number(stride)}" for at, stride in zip(subscripts, view.strides, strict=True)]
        return f"p{self.views.index(view)} + " + " + ".join(term for term in terms if term != "0" or len(terms) == 1)

    def text(self, programs: Index, warps: int) -> RoutineText:
        pointers = [f"p{number}" for number in range(len(self.views))]
        parameters = ", ".join([*pointers, *(f"n{number}" for number in range(len(self.sizes)))])
        head = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
        body = [f"    {line}" if line else "" for line in self.lines]
        text = "\n".join([*head, f"def {self.name}({parameters}):", *body, ""])
        signature = tuple(POINTER_TYPES[view.buffer.dtype] for view in self.views) + ("i64",) * len(self.sizes)
        source = KernelSource(self.name, text, signature, warps)
        return RoutineText(source, programs, tuple(view.buffer for view in self.views), tuple(self.sizes))


def write_routine(call: LibraryCall) -> RoutineText:
    """Generate the call's kernel."""
    return _write_scan(call) if call.routine == "scan" else _write_attention(call)


def _block(size: Index, most: int) -> int:
    """The smallest power of two that is at least the size, or the maximum."""
    known = size.constant
    return most if known is None else min(most, max(16, 1 << (known - 1).bit_length()))


def _write_scan(call: LibraryCall) -> RoutineText:
    """One program scans each row, block by block."""
    (source,), (target,) = call.inputs, call.outputs
    dim, kind = (number.constant or 0 for number in call.numbers)
    writer = _Writer("running_" + SCAN_KINDS[kind], (source, target))
    rank, length, dtype = len(source.shape), source.shape, source.buffer.dtype
    size = length[dim] if rank else constant(1)
    block = _block(size, _LONGEST_BLOCK)
    names = [f"i{number}" for number in range(rank)]
    lines = ["rest = tl.program_id(0).to(tl.int64)"]
    for number in reversed(range(rank)):
        if number != dim:
            extent = writer.number(length[number])
            lines += [f"i{number} = rest % {extent}", f"rest = rest // {extent}"]
    is_single = DTYPES[dtype].is_floating and dtype != "f64"
    wide = "tl.float32" if is_single else {"f64": "tl.float64"}.get(dtype, "tl.int64")
    is_sum = SCAN_KINDS[kind] == "sum"
    start, along = ("0", "tl.cumsum") if is_sum else ("1", "tl.cumprod")
    joined = "+" if is_sum else "*"
    if rank:
        names[dim] = "at"
    lines += [
        f"before = tl.full((1,), {start}, {wide})",
        f"for start in range(0, {writer.number(size)}, {block}):",
        f"    at = (start + tl.arange(0, {block})).to(tl.int64)",
        f"    inside = at < {writer.number(size)}",
        f"    value = tl.load({writer.place(source, names)}, inside, other={start}).to({wide})",
        f"    found = before {joined} {along}(value, 0)",
        f"    tl.store({writer.place(target, names)}, found.to(p1.dtype.element_ty), inside)",
        # The last element: what is past the end is neutral.
        f"    before = tl.sum(tl.where(tl.arange(0, {block}) == {block - 1}, found, tl.zeros_like(found)), 0)[None]",
    ]
    writer.lines = lines
    programs = product(each for number, each in enumerate(length) if number != dim)
    return writer.text(programs, 4 if block > 256 else 1)


def _write_attention(call: LibraryCall) -> RoutineText:
    """Each program iterates over all keys for a block of queries; scores are never stored in memory."""
    query, key, value, *masks = call.inputs
    result, sums = call.outputs
    is_causal, _, bits = (number.constant or 0 for number in call.numbers)
    depth = query.shape[-1].constant
    assert depth is not None, "the size of heads is known"
    scale = 1 / math.sqrt(depth) if bits < 0 else struct.unpack("f", struct.pack("I", bits))[0]
    writer = _Writer("attention", (query, key, value, *masks, result, sums))
    rows, columns, width = _block(query.shape[2], 64), _block(key.shape[2], 64), _block(query.shape[3], _WIDEST_HEAD)
    heads, length, keys = (writer.number(each) for each in (query.shape[1], query.shape[2], key.shape[2]))
    # Heads may share keys and values (grouped-query attention).
    shared = writer.number(floor_divide(query.shape[1], key.shape[1])) if query.shape[1] != key.shape[1] else "1"
    inside, deep = f"(rows < {length})[:, None]", f"(depth < {depth})"
    other, precision = f"(h // {shared})", '"ieee"'
    load_key = writer.place(key, ["b", other, "columns[None, :]", "depth[:, None]"])
    load_value = writer.place(value, ["b", other, "columns[:, None]", "depth[None, :]"])
    end = f"tl.minimum({keys}, (block + 1) * {rows})" if is_causal else keys
    causal = " & (columns[None, :] <= rows[:, None])" if is_causal else ""
    lines = [
        f"blocks = ({length} + {rows - 1}) // {rows}",
        "block, head = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)",
        f"b, h = head // {heads}, head % {heads}",
        f"rows = block * {rows} + tl.arange(0, {rows})",
        f"depth = tl.arange(0, {width})",
        f"query = tl.load({writer.place(query, ['b', 'h', 'rows[:, None].to(tl.int64)', 'depth[None, :]'])},",
        f"                {inside} & {deep}[None, :], other=0)",
        f'peak = tl.full(({rows},), float("-inf"), tl.float32)',
        f"total = tl.zeros(({rows},), tl.float32)",
        f"found = tl.zeros(({rows}, {width}), tl.float32)",
        f"for start in range(0, {end}, {columns}):",
        f"    columns = (start + tl.arange(0, {columns})).to(tl.int64)",
        f"    seen = (columns < {keys})[None, :]",
        f"    key = tl.load({load_key}, seen & {deep}[:, None], other=0)",
        f"    score = tl.dot(query, key, input_precision={precision}) * {scale!r}",
    ]
    for mask in masks:
        at = writer.place(mask, ["b", "h", "rows[:, None].to(tl.int64)", "columns[None, :]"])
        lines.append(f"    score += tl.load({at}, {inside} & seen, other=0).to(tl.float32)")
    lines += [
        f'    score = tl.where(seen{causal}, score, float("-inf"))',
        "    higher = tl.maximum(peak, tl.max(score, 1))",
        "    # A row that sees nothing yet has no largest score.",
        '    top = tl.where(higher == float("-inf"), 0.0, higher)',
        "    weight, fading = tl.exp(score - top[:, None]), tl.exp(peak - top)",
        "    total = total * fading + tl.sum(weight, 1)",
        f"    value = tl.load({load_value}, (columns < {keys})[:, None] & {deep}[None, :], other=0)",
        "    found = found * fading[:, None]",
        f"    found += tl.dot(weight.to(value.dtype), value, input_precision={precision})",
        "    peak = higher",
        "whole = tl.where(total == 0, 1.0, total)",
        f"tl.store({writer.place(result, ['b', 'h', 'rows[:, None].to(tl.int64)', 'depth[None, :]'])},",
        f"         (found / whole[:, None]).to(p{len(writer.views) - 2}.dtype.element_ty), {inside} & {deep}[None, :])",
        f"tl.store({writer.place(sums, ['b', 'h', 'rows.to(tl.int64)'])},",
        f"         tl.where(total == 0, 0.0, peak + tl.log(whole)), rows < {length})",
    ]
    writer.lines = lines
    programs = product([query.shape[0], query.shape[1], floor_divide(query.shape[2] + (rows - 1), rows)])
    return writer.text(programs, 8 if width > 64 else 4)
