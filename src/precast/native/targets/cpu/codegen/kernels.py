"""One kernel as a C++ function.

Loops are printed in the order of the IR: the outermost is parallel where the work pays for it, the innermost is
vectorized. A full reduction is split into a fixed number of parts, so that it does not depend on the number of threads.
Where memory is contiguous along the outer loop and not along the inner one (column sums of a matrix), the outer loop is
vectorized: a block of `LANES` columns is carried through the inner loop together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from precast.native.loops.buffers import Buffer
from precast.native.loops.canonical import kernel_parameters
from precast.native.loops.index import Index, Variable, atom, coefficient_of, constant
from precast.native.loops.program import (
    Kernel,
    Loop,
    Statement,
    Store,
    loads_of,
    statement_values,
    statements_of,
    stores_of,
    variables_of,
    written_by,
)
from precast.native.loops.scalars import Accumulator, Apply, Load, Scalar, walk
from precast.native.targets.cpu.codegen.accumulators import (
    BLOCK,
    LANE_BLOCK,
    clause,
    combined,
    combined_in_vector,
    declaration,
    joined,
    neutral,
    with_parts,
)
from precast.native.targets.cpu.codegen.scalars import Expressions, subscript_text
from precast.native.targets.cpu.codegen.tiles import TILE, Crossing, Tiles, condition, crossing, may_be_large, schedule
from precast.native.targets.cpu.codegen.types import (
    CPP_TYPES,
    MEMORY_TYPES,
    TRUNCATION,
    Namer,
    identifier,
    in_memory,
    index_text,
)

PARTS = 64
"""The number of parts of a full reduction."""

SHORT = 8
"""A loop of up to this many iterations fills no vector."""
LANES = 256
"""At most this many iterations of an outer loop are carried through an inner loop together."""
FEWEST_LANES = 64


@dataclass(frozen=True)
class KernelFunction:
    """A C++ function; its parameters are those of `kernel_parameters`."""

    name: str
    text: str
    declaration: str


class Signature:
    """A kernel's parameters with their names and types in C++; `taken` are names used otherwise."""

    def __init__(self, kernel: Kernel, taken: Iterable[str] = ()):
        self.buffers, self.sizes = kernel_parameters(kernel)
        self.namer = Namer()
        self.namer.taken |= {identifier(variable.name) for variable in variables_of(kernel.body)}
        self.namer.taken |= {*map(identifier, self.sizes), *taken}
        self.pointers = {buffer: self.namer.fresh(buffer.name) for buffer in self.buffers}
        self._written = set(written_by(kernel))

    def type_of(self, buffer: Buffer) -> str:
        return ("" if buffer in self._written else "const ") + MEMORY_TYPES[buffer.dtype]

    @property
    def parameters(self) -> list[str]:
        pointers = [f"{self.type_of(buffer)}* __restrict__ {name}" for buffer, name in self.pointers.items()]
        return pointers + [f"const int64_t {identifier(size)}" for size in self.sizes]


def write_kernel(kernel: Kernel, name: str) -> KernelFunction:
    """Print `kernel` as the function `name`."""
    signature = Signature(kernel)
    header = f"void {name}({', '.join(signature.parameters)})"
    lines = [f"// {origin}" for origin in kernel.origins]
    lines += [f"{header} {{", *indented(KernelWriter(signature).top_level(kernel.body)), "}"]
    return KernelFunction(name, "\n".join(lines) + "\n", f"{header};")


class KernelWriter:
    """Prints statements of one kernel."""

    def __init__(self, signature: Signature):
        self.namer, self.pointers = signature.namer, signature.pointers
        self.accumulators: dict[Accumulator, str] = {}
        self.in_vector: set[Accumulator] = set()
        self.expressions = Expressions(self.namer, self.pointers, self.accumulators)

    def top_level(self, body: tuple[Statement, ...]) -> list[str]:
        lines: list[str] = []
        groups = _grouped(body)
        for group in groups:
            first = group[0]
            if isinstance(first, Loop):
                lines += self.split_reduction(first) if first.accumulators else self.loop(first, is_outermost=True)
            else:
                lines += _scoped(self.straight(group), is_alone=len(groups) == 1)
        return lines

    def body(self, body: tuple[Statement, ...]) -> list[str]:
        lines: list[str] = []
        groups = _grouped(body)
        for group in groups:
            first = group[0]
            if isinstance(first, Loop):
                lines += self.loop(first, is_outermost=False)
            else:
                lines += _scoped(self.straight(group), is_alone=len(groups) == 1)
        return lines

    def straight(self, group: Sequence[Statement]) -> list[str]:
        """Stores and accumulations of one body, with common subexpressions shared."""
        statements = [statement for statement in group if not isinstance(statement, Loop)]
        taken = set(self.namer.taken)
        roots = [value for statement in statements for value in statement_values(statement)]
        lines, texts = self.expressions.write(roots)
        self.namer.taken = taken
        remaining = iter(zip(roots, texts, strict=True))
        for statement in statements:
            values = {id(root): text for root, text in islice(remaining, len(statement_values(statement)))}
            if isinstance(statement, Store):
                lines.append(self.store(statement, values))
            else:
                lines += self.accumulate(statement.accumulator, values[id(statement.value)])
        return lines

    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]:
        name = self.accumulators[accumulator]
        if accumulator not in self.in_vector:
            return [combined(accumulator.kind, name, value)]
        if accumulator.kind in ("max", "min") and not value.isidentifier():
            # It is read more than once.
            candidate = f"{name}_next"
            line = f"const {CPP_TYPES[accumulator.dtype]} {candidate} = {value};"
            return [line, *combined_in_vector(accumulator, name, candidate)]
        return combined_in_vector(accumulator, name, value)

    def store(self, store: Store, values: dict[int, str]) -> str:
        offset = store.buffer.offset(store.indices)
        names = {each: subscript_text(each, f"({values[id(each.value)]})") for each in offset.computed}
        element = f"{self.pointers[store.buffer]}[{index_text(offset, names)}]"
        value, dtype = values[id(store.value)], store.buffer.dtype
        value = in_memory(value, dtype)
        if store.combine is None:
            text = f"{element} = {value};"
        elif dtype == "bool":
            text = f"{element} {'|' if store.combine in ('sum', 'max') else '&'}= {value};"
        elif dtype in TRUNCATION:
            text = f"{element} = precast::combine_{store.combine}({element}, {value});"
        else:
            text = combined(store.combine, element, value)
        return text if store.guard is None else f"if ({values[id(store.guard)]}) {text}"

    def loop(self, loop: Loop, *, is_outermost: bool) -> list[str]:
        if not loop.accumulators and _runs_along_outer(loop):
            return self.lane_loop(loop, is_outermost=is_outermost)
        lines = self.declare(loop.accumulators)
        if loop.accumulators and loop.variables and not _has_inner_loop(loop):
            return lines + self.reduction(loop)
        if (directions := crossing(loop)) is not None:
            return self.tiled(loop, directions, is_outermost=is_outermost)
        pragmas = _pragmas(loop, is_outermost=is_outermost, is_innermost=not _has_inner_loop(loop))
        inner = _scoped(self.body(loop.body), is_alone=bool(loop.variables))
        for position, variable in reversed(list(enumerate(loop.variables))):
            pragma = [pragmas[position]] if position in pragmas else []
            inner = [*pragma, _header(variable), *indented(inner), "}"]
        return lines + inner

    def tiled(self, loop: Loop, directions: Crossing, *, is_outermost: bool) -> list[str]:
        """A tiled nest: memory is contiguous along one of two variables for reads, and along the other for writes."""
        outer = [each for each in loop.variables if each not in (directions.across, directions.last)]
        blocks = {each: self.namer.fresh(f"{each.name}_block") for each in (directions.across, directions.last)}
        tiles = Tiles(directions, blocks, self.pointers)
        inner = tiles.copy(loop) or self.tile(loop, tiles)
        headers = [_header(each) for each in outer]
        headers += [f"for (int64_t {block} = 0; {block} < {index_text(each.extent)}; {block} += {TILE}) {{"
                    for each, block in blocks.items()]  # fmt: skip
        for header in reversed(headers):
            inner = [header, *indented(inner), "}"]
        is_parallel = is_outermost and may_be_large(loop)
        return [
            *([f"#pragma omp parallel for collapse({len(headers)}){condition(loop)}"] if is_parallel else []),
            *inner,
        ]

    def tile(self, loop: Loop, tiles: Tiles) -> list[str]:
        lines, self.expressions.tiles = tiles.read(loop, self.namer)
        inner = _scoped(self.body(loop.body), is_alone=True)
        self.expressions.tiles = {}
        for each, pragma in ((tiles.directions.last, ["#pragma omp simd"]), (tiles.directions.across, [])):
            stop = f"precast::minimum<int64_t>({tiles.blocks[each]} + {TILE}, {index_text(each.extent)})"
            inner = [*pragma, _header(each, (tiles.blocks[each], stop)), *indented(inner), "}"]
        return lines + inner

    def reduction(self, loop: Loop, bounds: tuple[str, str] | None = None) -> list[str]:
        """An innermost loop that reduces into totals declared before it; `bounds` are those of its first variable."""
        *outer, last = loop.variables
        inner = self.vector_reduction(loop, last, bounds if not outer else None)
        for position, variable in reversed(list(enumerate(outer))):
            header = _header(variable, bounds if position == 0 else None)
            inner = [header, *indented(inner), "}"]
        return inner

    def vector_reduction(self, loop: Loop, variable: Variable, bounds: tuple[str, str] | None) -> list[str]:
        """The last variable of a reduction, vectorized, in blocks where that keeps precision."""
        if not _is_free(loop, variable):
            return [_header(variable, bounds), *indented(self.body(loop.body)), "}"]
        parts = with_parts(loop, extremes=True)
        has_sum = any(part.kind == "sum" for part in parts.of.values())
        names = {part: self.namer.fresh(part.name) for part in parts.of.values()}
        self.accumulators.update(names)
        self.in_vector |= set(names)
        start, stop = bounds or ("0", index_text(variable.extent))
        is_long = has_sum and not _is_at_most(variable.extent, BLOCK)
        block = self.namer.fresh(f"{variable.name}_block")
        inner_stop = f"{block}_end" if is_long else stop
        lines = [line for part, name in names.items() for line in declaration(part, name, is_vector=True)]
        clauses = "".join(clause(each, self.accumulators[each]) for each in parts.loop.accumulators)
        lines.append(f"#pragma omp simd{clauses}")
        lines += [
            _header(variable, (block if is_long else start, inner_stop)),
            *indented(self.body(parts.loop.body)),
            "}",
        ]
        lines += [joined(total, self.accumulators[total], part, names[part]) for total, part in parts.of.items()]
        if not is_long:
            return lines
        end = f"const int64_t {inner_stop} = precast::minimum<int64_t>({block} + {BLOCK}, {stop});"
        header = f"for (int64_t {block} = {start}; {block} < {stop}; {block} += {BLOCK}) {{"
        return [header, *indented([end, *lines]), "}"]

    def lane_loop(self, loop: Loop, *, is_outermost: bool) -> list[str]:
        """The last variable in blocks, each carried through the body as one vector."""
        *outer, variable = loop.variables
        block, lane, count_name = (self.namer.fresh(f"{variable.name}_{part}") for part in ("block", "lane", "lanes"))
        lanes = _Lanes(variable, block, lane, count_name, _lane_count(variable.extent))
        extent = index_text(variable.extent)
        count = f"const int64_t {lanes.count} = precast::minimum<int64_t>({lanes.room}, {extent} - {lanes.block});"
        headers = [_header(each) for each in outer]
        headers.append(f"for (int64_t {lanes.block} = 0; {lanes.block} < {extent}; {lanes.block} += {lanes.room}) {{")
        inner = [count, *self.lane_body(loop.body, lanes)]
        for header in reversed(headers):
            inner = [header, *indented(inner), "}"]
        if not is_outermost or not may_be_large(loop):
            return inner
        collapse = f" collapse({len(headers)})" if len(headers) > 1 else ""
        # The count depends on the block, so this loop cannot be collapsed with the others.
        return [f"#pragma omp parallel for{collapse}{condition(loop)}", *inner]

    def lane_body(self, body: tuple[Statement, ...], lanes: _Lanes) -> list[str]:
        lines: list[str] = []
        for group in _grouped(body):
            first = group[0]
            if not isinstance(first, Loop):
                position = f"const int64_t {lanes.variable.name} = {lanes.block} + {lanes.lane};"
                lines += lanes.loop([position, *self.straight(group)])
                continue
            lines += self.declare_lanes(first.accumulators, lanes)
            inner = self.lane_reduction(first, lanes) if first.variables else self.lane_body(first.body, lanes)
            for variable in reversed(first.variables[:-1]):
                inner = [_header(variable), *indented(inner), "}"]
            lines += inner
        return lines

    def lane_reduction(self, loop: Loop, lanes: _Lanes) -> list[str]:
        """The last variable of a loop carried as lanes, in blocks where that keeps precision."""
        variable = loop.variables[-1]
        parts = with_parts(loop, extremes=False)
        if not parts.of:
            return [_header(variable), *indented(self.lane_body(loop.body, lanes)), "}"]
        is_long = not _is_at_most(variable.extent, LANE_BLOCK)
        stop, block = index_text(variable.extent), self.namer.fresh(f"{variable.name}_block")
        bounds = (block, f"{block}_end") if is_long else None
        lines = self.declare_lanes(tuple(parts.of.values()), lanes)
        lines += [_header(variable, bounds), *indented(self.lane_body(parts.loop.body, lanes)), "}"]
        joins = [joined(total, self.accumulators[total], part, self.accumulators[part])
                 for total, part in parts.of.items()]  # fmt: skip
        lines += lanes.loop(joins)
        if not is_long:
            return lines
        end = f"const int64_t {block}_end = precast::minimum<int64_t>({block} + {LANE_BLOCK}, {stop});"
        header = f"for (int64_t {block} = 0; {block} < {stop}; {block} += {LANE_BLOCK}) {{"
        return [header, *indented([end, *lines]), "}"]

    def declare_lanes(self, accumulators: tuple[Accumulator, ...], lanes: _Lanes) -> list[str]:
        names = {each: self.namer.fresh(each.name) for each in accumulators}
        self.accumulators.update({each: f"{name}[{lanes.lane}]" for each, name in names.items()})
        lines = [f"{CPP_TYPES[each.dtype]} {name}[{lanes.room}];" for each, name in names.items()]
        start = [f"{self.accumulators[each]} = {neutral(each)};" for each in accumulators]
        return lines + (lanes.loop(start) if start else [])

    def declare(self, accumulators: tuple[Accumulator, ...]) -> list[str]:
        lines: list[str] = []
        for each in accumulators:
            self.accumulators[each] = self.namer.fresh(each.name)
            lines += declaration(each, self.accumulators[each])
        return lines

    def split_reduction(self, loop: Loop) -> list[str]:
        """A full reduction: in parts, whose results are then combined in order."""
        if not may_be_large(loop):
            return self.loop(loop, is_outermost=False)
        totals = self.declare(loop.accumulators)
        names = dict(self.accumulators)
        part_arrays = {each: self.namer.fresh(f"{self.accumulators[each]}_parts") for each in loop.accumulators}
        part, count = self.namer.fresh("part"), index_text(loop.variables[0].extent)
        lines = totals + [f"{CPP_TYPES[each.dtype]} {array}[{PARTS}];" for each, array in part_arrays.items()]
        inner = self.declare(loop.accumulators)
        bounds = (f"{part} * ({count}) / {PARTS}", f"({part} + 1) * ({count}) / {PARTS}")
        inner += self.nest(loop, bounds) if _has_inner_loop(loop) else self.reduction(loop, bounds)
        inner += [f"{array}[{part}] = {self.accumulators[each]};" for each, array in part_arrays.items()]
        lines += [f"#pragma omp parallel for{condition(loop)}",
                  f"for (int64_t {part} = 0; {part} < {PARTS}; ++{part}) {{", *indented(inner), "}"]  # fmt: skip
        self.accumulators.update(names)
        results = [combined(each.kind, names[each], f"{array}[{part}]") for each, array in part_arrays.items()]
        return [*lines, f"for (int64_t {part} = 0; {part} < {PARTS}; ++{part}) {{", *indented(results), "}"]

    def part(self, loop: Loop, bounds: tuple[str, str]) -> list[str]:
        """A plain loop over one variable with these bounds."""
        (variable,) = loop.variables
        return [_as_vector(loop), _header(variable, bounds), *indented(self.body(loop.body)), "}"]

    def nest(self, loop: Loop, bounds: tuple[str, str]) -> list[str]:
        """Nested loops around a body that contains loops; `bounds` are those of the first."""
        inner = self.body(loop.body)
        for position, variable in reversed(list(enumerate(loop.variables))):
            inner = [_header(variable, bounds if position == 0 else None), *indented(inner), "}"]
        return inner


@dataclass(frozen=True)
class _Lanes:
    """A loop variable vectorized across inner loops; the names of its block, lane and count; the block size."""

    variable: Variable
    block: str
    lane: str
    count: str
    room: int

    def loop(self, body: list[str]) -> list[str]:
        header = f"for (int64_t {self.lane} = 0; {self.lane} < {self.count}; ++{self.lane}) {{"
        return ["#pragma omp simd", header, *indented(body), "}"]


def _runs_along_outer(loop: Loop) -> bool:
    """Whether inner loops are short, or most of their accesses are contiguous along this loop's last variable."""
    if not loop.variables or not _is_free(loop, loop.variables[-1]) or not _has_inner_loop(loop):
        return False
    if _has_short_loops(loop):
        return True
    score = 0
    for inner in statements_of(loop.body):
        if isinstance(inner, Loop) and inner.variables and not _has_inner_loop(inner):
            offsets = [load.buffer.offset(load.indices) for load in loads_of(inner.body)]
            offsets += [store.buffer.offset(store.indices) for store in stores_of(inner.body)]
            for offset in offsets:
                strides = [coefficient_of(offset, each) for each in inner.variables]
                # What is invariant in the inner loop costs nothing there.
                if any(stride != constant(0) for stride in strides):
                    score += coefficient_of(offset, loop.variables[-1]) == constant(1)
                    score -= strides[-1] == constant(1)
    return score > 0


def _lane_count(extent: Index) -> int:
    """Few enough lanes for several blocks, since blocks run in parallel."""
    if extent.constant is None:
        return LANES // 2
    quarter = -(-extent.constant // 64) * 16
    return max(FEWEST_LANES, min(LANES, quarter))


def _has_short_loops(loop: Loop) -> bool:
    """Whether no inner loop is long enough for a vector, but this one is, and writes contiguously."""
    last = loop.variables[-1]
    inner = [each for each in statements_of(loop.body) if isinstance(each, Loop) and each.variables]
    is_short = all(_is_at_most(each.variables[-1].extent, SHORT) for each in inner)
    is_along = any(
        coefficient_of(each.buffer.offset(each.indices), last) == constant(1) for each in stores_of(loop.body)
    )
    return is_short and is_along and not _is_at_most(last.extent, SHORT)


def _header(variable: Variable, bounds: tuple[str, str] | None = None) -> str:
    name, (start, stop) = variable.name, bounds or ("0", index_text(variable.extent))
    return f"for (int64_t {name} = {start}; {name} < {stop}; ++{name}) {{"


def _is_at_most(extent: Index, bound: int) -> bool:
    return extent.constant is not None and extent.constant <= bound


def _grouped(body: tuple[Statement, ...]) -> list[list[Statement]]:
    """Loops one by one; runs of other statements together, up to one that reads what the run has written."""
    groups: list[list[Statement]] = []
    written: set[Buffer] = set()
    for statement in body:
        reads_back = not written.isdisjoint(load.buffer for load in loads_of((statement,))) if written else False
        if not groups or isinstance(statement, Loop) or isinstance(groups[-1][0], Loop) or reads_back:
            groups.append([])
            written.clear()
        groups[-1].append(statement)
        written |= {statement.buffer} if isinstance(statement, Store) else set()
    return groups


def _scoped(lines: list[str], *, is_alone: bool) -> list[str]:
    """Braces around a run of statements, so that its names do not clash with those of the next."""
    return lines if is_alone or not any(line.startswith("const ") for line in lines) else ["{", *indented(lines), "}"]


def _pragmas(loop: Loop, *, is_outermost: bool, is_innermost: bool) -> dict[int, str]:
    """The pragmas that make variables of the loop parallel or vectorized, by their position."""
    if not loop.variables:
        return {}
    last = len(loop.variables) - 1
    free = [_is_free(loop, variable) for variable in loop.variables]
    pragmas = {last: _as_vector(loop)} if is_innermost and free[-1] else {}
    if not is_outermost or not may_be_large(loop) or not free[0]:
        return pragmas
    if is_innermost and last == 0:
        return {0: f"#pragma omp parallel for simd{schedule(loop)}{condition(loop)}"}
    outer = last if is_innermost else last + 1
    outer = min(outer, (*free, False).index(False)) or 1
    collapse = f" collapse({outer})" if outer > 1 else ""
    return {**pragmas, 0: f"#pragma omp parallel for{collapse}{condition(loop)}"}


_UNROLLED = 64
"""Vectorized loops of at most this many iterations are fully unrolled."""


def _as_vector(loop: Loop) -> str:
    """The pragma that vectorizes the last variable.

    A fully unrolled loop reads under constant masks. GCC 12 then reads wrong elements, if many pointers are in use or
    elements are far apart; without the pragma, it vectorizes such a loop correctly.
    """
    extent = loop.variables[-1].extent.constant
    is_unrolled = extent is not None and extent <= _UNROLLED
    has_masks = is_unrolled and any(map(_reads_under_mask, walk(*(store.value for store in stores_of(loop.body)))))
    return "#pragma GCC unroll 1" if has_masks else "#pragma omp simd"


def _reads_under_mask(value: Scalar) -> bool:
    """Whether a read is conditional: the compiler turns both forms into masked loads."""
    match value:
        case Load(guard=guard):
            return guard is not None
        case Apply("where", (_, *arms)):
            return any(isinstance(each, Load) for arm in arms for each in walk(arm))
    return False


def _is_free(loop: Loop, variable: Variable) -> bool:
    """Whether different values of `variable` write different elements: every store is indexed by it, or is plain."""
    return all(store.is_plain or atom(variable) in store.indices for store in stores_of(loop.body))


def _has_inner_loop(loop: Loop) -> bool:
    return any(isinstance(statement, Loop) for statement in statements_of(loop.body))


def indented(lines: list[str]) -> list[str]:
    """The lines one level further in."""
    return [f"    {line}" for line in lines]
