"""Pad rows of matrices to multiples of 16 bytes, the alignment for tensor cores.

Before: ``logits: bf16[4096, 50257] = matmul(x, w)``, rows of 100514 bytes
After:  the same with strides (50264, 1)

Matrices in the caller's layout are copied: that reads and writes them once, whereas an unaligned GEMM is several times
slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precast.artifact.dtypes import DTYPES
from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index, Variable, atom, constant, floor_divide, product
from precast.native.loops.program import (
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Step,
    Store,
    read_by,
    with_steps,
    written_by,
)
from precast.native.loops.rewriting import replace_places
from precast.native.loops.scalars import Load

ALIGNMENT = 16
SHORTEST = 512
"""Shorter rows, and matrices with fewer rows than an eighth of that, are not worth it."""


def align_rows(program: LoopProgram) -> LoopProgram:
    """Align the rows of large 16-bit float matrices."""
    wanted = dict.fromkeys(view.buffer for step in program.steps for view in _unaligned(step))
    if not wanted:
        return program
    fixed = {*program.inputs, *program.outputs, *_otherwise_used(program)}
    names = {buffer.name for step in program.steps for buffer in (*read_by(step), *written_by(step))}
    padded = {buffer: _padded(buffer, names) for buffer in wanted}
    steps: list[Step] = []
    known: set[Buffer] = set()
    for step in program.steps:
        if isinstance(step, LibraryCall):
            call = _with_rows(step, padded, fixed)
            copied = fixed.intersection(padded) & set(read_by(step)) - set(read_by(call)) - known
            steps += [_copy(each, padded[each]) for each in read_by(step) if each in copied]
            made = fixed.intersection(padded) & set(written_by(step)) - set(written_by(call))
            steps += [call, *(_copy(padded[each], each) for each in written_by(step) if each in made)]
            known = (known | copied) - set(written_by(step)) | made
        elif isinstance(step, Kernel):
            moved = {old: new for old, new in padded.items() if old not in fixed}
            steps.append(_with_places(step, moved))
            known -= set(written_by(step))
        else:
            steps.append(step)
            known -= set(written_by(step))
    return with_steps(program, steps)


def _otherwise_used(program: LoopProgram) -> Iterator[Buffer]:
    """Buffers that other steps than loops and GEMMs use, or GEMMs by views that do not consist of rows."""
    for step in program.steps:
        if isinstance(step, LibraryCall) and step.routine == "matmul":
            yield from (view.buffer for view in (*step.inputs, *step.outputs) if not _has_row_strides(view))
        elif not isinstance(step, Kernel):
            yield from (*read_by(step), *written_by(step))


def _unaligned(step: Step) -> Iterator[View]:
    """Row-major matrices that a GEMM reads or writes, with unaligned rows."""
    if not isinstance(step, LibraryCall) or step.routine != "matmul":
        return
    for view in (*step.inputs[:2], *step.outputs):
        buffer = view.buffer
        rows, columns = (size.constant or 0 for size in view.shape[-2:]) if len(view.shape) > 1 else (0, 0)
        is_large = max(rows, columns) >= SHORTEST and min(rows, columns) >= SHORTEST // 8
        length = (buffer.shape[-1].constant or 0) * DTYPES[buffer.dtype].item_size if buffer.shape else 0
        is_half = DTYPES[buffer.dtype].item_size == 2 and DTYPES[buffer.dtype].is_floating
        if is_large and is_half and length % ALIGNMENT and _is_rows(buffer) and _has_row_strides(view):
            yield view


def _is_rows(buffer: Buffer) -> bool:
    return buffer.is_contiguous and len(buffer.shape) > 1


def _has_row_strides(view: View) -> bool:
    """Whether a view consists of rows, or parts of rows, so that these may grow."""
    row = view.buffer.shape[-1].constant if view.buffer.shape else None
    places = [each for each in zip(view.shape, view.strides, strict=True) if each[0] != constant(1)]
    columns = [size.constant for size, stride in places if stride == constant(1)]
    if row is None or len(columns) != 1 or columns[0] is None or not 1 < columns[0] <= row:
        return False
    others = [stride for _, stride in places if stride != constant(1)]
    return view.offset == constant(0) and all(floor_divide(each, row) * row == each for each in others)


def _padded(buffer: Buffer, names: set[str]) -> Buffer:
    row = buffer.shape[-1]
    assert row.constant is not None, "only rows of static length are padded"
    step = ALIGNMENT // DTYPES[buffer.dtype].item_size
    longer = constant(-(-row.constant // step) * step)
    name = f"{buffer.name}_aligned"
    while name in names:
        name += "_"
    names.add(name)
    return Buffer(name, buffer.dtype, buffer.shape, tuple(_longer(each, row, longer) for each in buffer.strides))


def _with_rows(call: LibraryCall, padded: dict[Buffer, Buffer], fixed: set[Buffer]) -> LibraryCall:
    def change(view: View) -> View:
        if view.buffer not in padded or not _has_row_strides(view):
            return view
        old, new = view.buffer.shape[-1], padded[view.buffer]
        strides = tuple(_longer(each, old, new.strides[-2]) for each in view.strides)
        return replace(view, buffer=new, strides=strides)

    def change_result(view: View) -> View:
        # What else is in a buffer of the caller's layout must not be overwritten when it is copied there.
        is_part = product(view.shape) != product(view.buffer.shape)
        return view if view.buffer in fixed and is_part else change(view)

    if call.routine != "matmul":
        return call
    return replace(call, inputs=tuple(map(change, call.inputs)), outputs=tuple(map(change_result, call.outputs)))


def _longer(stride: Index, old: Index, new: Index) -> Index:
    return stride if stride == constant(1) else floor_divide(stride, old) * new


def _with_places(kernel: Kernel, moved: dict[Buffer, Buffer]) -> Kernel:
    if moved.keys().isdisjoint((*kernel.read, *kernel.written)):
        return kernel
    return replace(kernel, body=replace_places(kernel.body, lambda place: (moved.get(place[0], place[0]), place[1])))


def _copy(source: Buffer, target: Buffer) -> Kernel:
    variables = tuple(Variable(f"i{number}", size) for number, size in enumerate(source.shape))
    at = tuple(map(atom, variables))
    return Kernel(target.name, (Loop(variables, (Store(target, at, Load(source, at)),)),), (f"{target.name}: aligned",))
