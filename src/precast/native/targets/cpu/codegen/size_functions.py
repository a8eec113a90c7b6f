"""C++ functions of a call's sizes: the first condition that fails, the layouts of tensors, the size of the arena.

Every number is computed exactly, or the call is rejected: all other sizes, strides and offsets that the program
computes from sizes at run time, without overflow checks, have been computed here before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from precast.native.describe import Entry
from precast.native.loops.buffers import Buffer, contiguous_strides
from precast.native.loops.index import Computed, Index, Variable, atoms, product
from precast.native.loops.program import (
    FallbackStep,
    Kernel,
    KernelGroup,
    LibraryCall,
    Loop,
    LoopProgram,
    Repeat,
    SizeSource,
    Statement,
    Step,
    found_sizes,
    parts_of,
)
from precast.native.loops.size_bounds import Bounds, upper_bound, with_own_bounds
from precast.native.targets.cpu.codegen.types import identifier, index_text, text_literal

HEADER = '#include "precast_sizes.h"'
_EXACT = "precast::exact"


def size_functions(prefix: str, entry: Entry) -> list[str]:
    """The functions in the table of entries."""
    return [*_broken_condition(prefix, entry), *_layouts(prefix, entry), *_arena_size(prefix, entry)]


def size_lines(sizes: Iterable[SizeSource], array: str, *, number: str = "int64_t") -> list[str]:
    """Local constants for the sizes of a call."""
    return [f"    [[maybe_unused]] const {number} {identifier(source.symbol)} = {array}[{position}];"
            for position, source in enumerate(sizes)]  # fmt: skip


def _broken_condition(prefix: str, entry: Entry) -> list[str]:
    header = f"static const char* {prefix}_broken_condition([[maybe_unused]] const int64_t* sizes) {{"
    lines = [header, *size_lines(entry.program.sizes, "sizes", number=_EXACT)]
    for each in entry.conditions:
        left, right = (f"precast::number({_text(side)}, known)" for side in (each.left, each.right))
        lines += [
            "    {",
            "        bool known = true;",
            f"        const int64_t left = {left}, right = {right};",
            f"        if (!known || !(left {each.relation} right)) return {text_literal(each.text)};",
            "    }",
        ]
    return [*lines, "    return nullptr;", "}", ""]


def _layouts(prefix: str, entry: Entry) -> list[str]:
    program = entry.program
    found = found_sizes(program)
    bounds = dict[str, Index]()
    for source in found:
        assert source.bound is not None, f"nothing bounds {source.symbol}"
        bounds[source.symbol] = upper_bound(source.bound, bounds)
    inputs, outputs = (list(map(entry.outside, buffers)) for buffers in (program.inputs, program.outputs))
    roomy = [_at_bounds(buffer, bounds) for buffer in outputs]
    first = _layout_function(f"{prefix}_layouts", [*inputs, *roomy], program.sizes)
    if not found:
        return first
    return [*first, *_layout_function(f"{prefix}_found_layouts", outputs, (*program.sizes, *found))]


def _at_bounds(buffer: Buffer, bounds: Bounds) -> Buffer:
    """The buffer allocated for this one's largest size; the same unless its sizes are data-dependent."""
    shape = tuple(upper_bound(size, bounds) for size in buffer.shape)
    return buffer if shape == buffer.shape else Buffer(buffer.name, buffer.dtype, shape, contiguous_strides(shape))


def _layout_function(name: str, buffers: Sequence[Buffer], sizes: Sequence[SizeSource]) -> list[str]:
    numbers = [size for buffer in buffers for size in (*buffer.shape, *buffer.strides)]
    lines = [f"    layouts[{position}] = {_known(size)};" for position, size in enumerate(numbers)]
    parameters = "[[maybe_unused]] const int64_t* sizes, [[maybe_unused]] int64_t* layouts"
    return [f"static bool {name}({parameters}) {{", *_opening(sizes), *lines, "    return known;", "}", ""]


def _arena_size(prefix: str, entry: Entry) -> list[str]:
    header = f"static int64_t {prefix}_arena_size([[maybe_unused]] const int64_t* sizes) {{"
    computed = dict.fromkeys(_text(each) for each in computed_numbers(entry.program, {}) if not _is_given(each))
    return [
        header,
        *_opening(entry.program.sizes),
        *(f"    precast::number({text}, known);" for text in computed),
        f"    const int64_t size = {_known(entry.plan.arena_size)};",
        "    return known ? size : -1;",
        "}",
        "",
    ]


def _opening(sizes: Sequence[SizeSource]) -> list[str]:
    return [*size_lines(sizes, "sizes", number=_EXACT), "    bool known = true;"]


def _is_given(size: Index) -> bool:
    """Whether it needs no computation."""
    return size.constant is not None or _text(size).isidentifier()


def _known(size: Index) -> str:
    if _is_given(size):
        return _text(size) if size.constant is not None else f"{_text(size)}.value"
    return f"precast::number({_text(size)}, known)"


def _text(size: Index) -> str:
    return index_text(size, number=_EXACT)


def computed_numbers(program: LoopProgram, bounds: Bounds) -> Iterator[Index]:
    """Everything that a running program computes from sizes alone, outside of its kernels, and its loops' lengths.

    Data-dependent sizes are replaced by their upper bounds: what the program computes is no larger.
    """
    for buffer in program.temporaries:
        yield from (upper_bound(each, bounds) for each in (*buffer.shape, *buffer.strides))
    for step in program.steps:
        yield from (upper_bound(each, bounds) for each in _numbers_of(step) if not _varies(each))
        for part in parts_of(step):
            assert part.plan is not None, f"the memory of {part.program.name} was not planned"
            inside = with_own_bounds(bounds, part.program)
            yield from (*computed_numbers(part.program, inside), upper_bound(part.plan.arena_size, inside))


def _numbers_of(step: Step) -> Iterator[Index]:
    match step:
        case Kernel(body=body):
            yield from _iterations(body)
        case KernelGroup(members=members):
            for member in members:
                yield from _iterations(member.body)
        case LibraryCall():
            yield from step.numbers
            for view in (*step.inputs, *step.outputs):
                # Routines copy operands, whose elements have 16 bytes at most.
                yield from (*view.shape, *view.strides, view.offset, product(view.shape) * 16)
        case FallbackStep():
            for buffer in (*step.inputs, *step.outputs):
                yield from (*buffer.shape, *buffer.strides)
        case Repeat():
            yield from () if step.count is None else (step.count,)
            yield from (buffer.byte_size for buffer in step.spares)


def _iterations(body: Iterable[Statement]) -> Iterator[Index]:
    for statement in body:
        if isinstance(statement, Loop):
            yield product(variable.extent for variable in statement.variables)
            yield from _iterations(statement.body)


def _varies(number: Index) -> bool:
    """Whether it depends on anything except sizes."""
    return any(isinstance(each, Variable | Computed) for each in atoms(number))
