"""One kernel as a C++ function.

Loops are printed as they stand: the outermost in parallel where the work pays for it, the innermost as vectors. A sum
over everything is cut into a fixed number of parts, so that it does not depend on how many threads there are. Where
memory runs along the outer loop and not along the inner one (the sum of a matrix's columns), the outer loop is the
vector: a block of `LANES` columns is carried through the inner loop together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from precast.codegen.cpp_scalars import Expressions, subscript_text
from precast.codegen.cpp_types import CPP_TYPES, Namer, identifier, index_text, literal
from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, Symbol, Variable, atom, atoms, coefficient_of, constant, product
from precast.ir.loops.program import (
    Kernel,
    Loop,
    Statement,
    Store,
    loads_of,
    statement_values,
    statements_of,
    stores_of,
    values_of,
    variables_of,
    written_by,
)
from precast.ir.loops.scalars import LIGHT, Accumulator, Apply, IndexValue, Scalar, walk

PARALLEL_WORK = 32768
"""Loops of less work than this, in operations, run in one thread: starting the others costs more."""
PARTS = 64
"""How many pieces a sum over everything is cut into."""

LANES = 64
"""How many iterations of an outer loop are carried through an inner loop together."""

_REDUCTIONS = {"sum": "+", "prod": "*", "max": "precast::nan_max", "min": "precast::nan_min", "any": "||", "all": "&&"}
_HEAVY_OPERATION = 16


@dataclass(frozen=True)
class KernelFunction:
    """A C++ function and what a call passes to it: buffers, then sizes."""

    name: str
    text: str
    declaration: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]


def kernel_parameters(kernel: Kernel) -> tuple[tuple[Buffer, ...], tuple[str, ...]]:
    """Buffers in the order of first use, and the dynamic sizes that the kernel mentions."""
    loaded = [load.buffer for load in loads_of(kernel.body)]
    buffers = tuple(dict.fromkeys([*loaded, *(store.buffer for store in stores_of(kernel.body))]))
    indices: list[Index] = [variable.extent for variable in variables_of(kernel.body)]
    indices += [load.buffer.offset(load.indices) for load in loads_of(kernel.body)]
    indices += [store.buffer.offset(store.indices) for store in stores_of(kernel.body)]
    indices += [value.index for value in walk(*values_of(kernel.body)) if isinstance(value, IndexValue)]
    names = dict.fromkeys(each.name for index in indices for each in sorted(atoms(index), key=lambda a: a.text)
                          if isinstance(each, Symbol))  # fmt: skip
    return buffers, tuple(names)


def write_kernel(kernel: Kernel, name: str) -> KernelFunction:
    """Print `kernel` as the function `name`."""
    buffers, sizes = kernel_parameters(kernel)
    namer = Namer()
    for variable in variables_of(kernel.body):
        namer.taken.add(identifier(variable.name))
    namer.taken |= set(map(identifier, sizes))
    pointers = {buffer: namer.fresh(buffer.name) for buffer in buffers}
    written = set(written_by(kernel))
    parameters = [f"{'' if buffer in written else 'const '}{CPP_TYPES[buffer.dtype]}* __restrict__ {pointers[buffer]}"
                  for buffer in buffers]  # fmt: skip
    parameters += [f"const int64_t {identifier(size)}" for size in sizes]
    header = f"void {name}({', '.join(parameters)})"
    lines = [f"// {origin}" for origin in kernel.origins]
    lines += [f"{header} {{", *_indented(_KernelWriter(namer, pointers).top_level(kernel.body)), "}"]
    return KernelFunction(name, "\n".join(lines) + "\n", f"{header};", buffers, sizes)


class _KernelWriter:
    def __init__(self, namer: Namer, pointers: dict[Buffer, str]):
        self.namer, self.pointers = namer, pointers
        self.accumulators: dict[Accumulator, str] = {}
        self.expressions = Expressions(namer, pointers, self.accumulators)

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
        """Stores and accumulations of one body, sharing their subexpressions."""
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
                name = self.accumulators[statement.accumulator]
                lines.append(_combined(statement.accumulator.kind, name, values[id(statement.value)]))
        return lines

    def store(self, store: Store, values: dict[int, str]) -> str:
        offset = store.buffer.offset(store.indices)
        names = {each: subscript_text(each, f"({values[id(each.value)]})") for each in offset.computed}
        element = f"{self.pointers[store.buffer]}[{index_text(offset, names)}]"
        value, dtype = values[id(store.value)], store.buffer.dtype
        if store.combine is None:
            text = f"{element} = {value};"
        elif dtype in ("f16", "bf16"):
            text = f"{element} = precast::combine_{store.combine}({element}, {value});"
        else:
            text = _combined(store.combine, element, value)
        return text if store.guard is None else f"if ({values[id(store.guard)]}) {text}"

    def loop(self, loop: Loop, *, is_outermost: bool) -> list[str]:
        if not loop.accumulators and _runs_along_outer(loop):
            return self.lane_loop(loop, is_outermost=is_outermost)
        lines = self.declare(loop.accumulators)
        is_innermost = not any(isinstance(statement, Loop) for statement in loop.body)
        pragmas = _pragmas(loop, is_outermost=is_outermost, is_innermost=is_innermost)
        reduction = self.reduction_clause(loop.accumulators) if is_innermost else ""
        headers = [_header(variable) for variable in loop.variables]
        inner = _scoped(self.body(loop.body), is_alone=bool(headers))
        for position in reversed(range(len(headers))):
            pragma = pragmas.get(position, "")
            # A vector's accumulators must be declared in the loop that is a vector, not in one around it.
            pragma += reduction if position == len(headers) - 1 and pragma else ""
            inner = [*([pragma] if pragma else []), headers[position], *_indented(inner), "}"]
        return lines + inner

    def lane_loop(self, loop: Loop, *, is_outermost: bool) -> list[str]:
        """The last variable in blocks, each block carried through the body as one vector."""
        *outer, variable = loop.variables
        lanes = _Lanes(variable, *(self.namer.fresh(f"{variable.name}_{part}") for part in ("block", "lane", "lanes")))
        extent = index_text(variable.extent)
        count = f"const int64_t {lanes.count} = std::min<int64_t>({LANES}, {extent} - {lanes.block});"
        headers = [_header(each) for each in outer]
        headers.append(f"for (int64_t {lanes.block} = 0; {lanes.block} < {extent}; {lanes.block} += {LANES}) {{")
        inner = [count, *self.lane_body(loop.body, lanes)]
        for header in reversed(headers):
            inner = [header, *_indented(inner), "}"]
        if not is_outermost or not _may_be_large(loop):
            return inner
        collapse = f" collapse({len(headers)})" if len(headers) > 1 else ""
        # The count depends on the block, so it is not part of the loops that are joined.
        return [f"#pragma omp parallel for{collapse}{_condition(loop)}", *inner]

    def lane_body(self, body: tuple[Statement, ...], lanes: _Lanes) -> list[str]:
        lines: list[str] = []
        for group in _grouped(body):
            first = group[0]
            if not isinstance(first, Loop):
                position = f"const int64_t {lanes.variable.name} = {lanes.block} + {lanes.lane};"
                lines += lanes.loop([position, *self.straight(group)])
                continue
            for each in first.accumulators:
                name = self.namer.fresh(each.name)
                self.accumulators[each] = f"{name}[{lanes.lane}]"
                lines.append(f"{CPP_TYPES[each.dtype]} {name}[{LANES}];")
                lines += lanes.loop([f"{self.accumulators[each]} = {_neutral(each)};"])
            inner = self.lane_body(first.body, lanes)
            for variable in reversed(first.variables):
                inner = [_header(variable), *_indented(inner), "}"]
            lines += inner
        return lines

    def declare(self, accumulators: tuple[Accumulator, ...]) -> list[str]:
        lines = []
        for each in accumulators:
            self.accumulators[each] = self.namer.fresh(each.name)
            lines.append(f"{CPP_TYPES[each.dtype]} {self.accumulators[each]} = {_neutral(each)};")
        return lines

    def reduction_clause(self, accumulators: tuple[Accumulator, ...]) -> str:
        return "".join(f" reduction({_REDUCTIONS[each.kind]} : {self.accumulators[each]})" for each in accumulators)

    def split_reduction(self, loop: Loop) -> list[str]:
        """A reduction over everything: in parts, whose results are then combined in order."""
        if not _may_be_large(loop):
            return self.loop(loop, is_outermost=False)
        first, *others = loop.variables
        totals = self.declare(loop.accumulators)
        names = dict(self.accumulators)
        part_arrays = {each: self.namer.fresh(f"{self.accumulators[each]}_parts") for each in loop.accumulators}
        part, count = self.namer.fresh("part"), index_text(first.extent)
        lines = totals + [f"{CPP_TYPES[each.dtype]} {array}[{PARTS}];" for each, array in part_arrays.items()]
        inner = self.declare(loop.accumulators)
        rest = Loop(tuple(others), loop.body) if others else None
        clause = self.reduction_clause(loop.accumulators)
        body = self.vector_loop(rest, clause) if rest else self.body(loop.body)
        header = (f"for (int64_t {first.name} = {part} * ({count}) / {PARTS}; "
                  f"{first.name} < ({part} + 1) * ({count}) / {PARTS}; ++{first.name}) {{")  # fmt: skip
        pragma = [] if rest or _has_inner_loop(loop) else [f"#pragma omp simd{clause}"]
        inner += [*pragma, header, *_indented(body), "}"]
        inner += [f"{array}[{part}] = {self.accumulators[each]};" for each, array in part_arrays.items()]
        lines += [f"#pragma omp parallel for{_condition(loop)}",
                  f"for (int64_t {part} = 0; {part} < {PARTS}; ++{part}) {{", *_indented(inner), "}"]  # fmt: skip
        self.accumulators.update(names)
        combined = [_combined(each.kind, names[each], f"{array}[{part}]") for each, array in part_arrays.items()]
        return [*lines, f"for (int64_t {part} = 0; {part} < {PARTS}; ++{part}) {{", *_indented(combined), "}"]

    def vector_loop(self, loop: Loop, clause: str) -> list[str]:
        inner = self.body(loop.body)
        is_innermost = not _has_inner_loop(loop)
        for position, variable in reversed(list(enumerate(loop.variables))):
            header = _header(variable)
            pragma = [f"#pragma omp simd{clause}"] if is_innermost and position == len(loop.variables) - 1 else []
            inner = [*pragma, header, *_indented(inner), "}"]
        return inner


@dataclass(frozen=True)
class _Lanes:
    """A loop variable that runs as a vector across inner loops, and the names of its block, lane and lane count."""

    variable: Variable
    block: str
    lane: str
    count: str

    def loop(self, body: list[str]) -> list[str]:
        header = f"for (int64_t {self.lane} = 0; {self.lane} < {self.count}; ++{self.lane}) {{"
        return ["#pragma omp simd", header, *_indented(body), "}"]


def _runs_along_outer(loop: Loop) -> bool:
    """Whether most of what the inner loops read lies side by side along this loop's last variable, not along theirs."""
    if not loop.variables or not _is_free(loop, loop.variables[-1]):
        return False
    score = 0
    for inner in statements_of(loop.body):
        if isinstance(inner, Loop) and inner.variables and not _has_inner_loop(inner):
            for load in loads_of(inner.body):
                offset = load.buffer.offset(load.indices)
                score += coefficient_of(offset, loop.variables[-1]) == constant(1)
                score -= coefficient_of(offset, inner.variables[-1]) == constant(1)
    return score > 0


def _header(variable: Variable) -> str:
    name = variable.name
    return f"for (int64_t {name} = 0; {name} < {index_text(variable.extent)}; ++{name}) {{"


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
    """Names of one run of statements do not meet those of the next."""
    return lines if is_alone or not any(line.startswith("const ") for line in lines) else ["{", *_indented(lines), "}"]


def _pragmas(loop: Loop, *, is_outermost: bool, is_innermost: bool) -> dict[int, str]:
    """Which of the loop's variables run in parallel and which as vectors."""
    if not loop.variables:
        return {}
    last = len(loop.variables) - 1
    free = [_is_free(loop, variable) for variable in loop.variables]
    pragmas = {last: "#pragma omp simd"} if is_innermost and free[-1] else {}
    if not is_outermost or not _may_be_large(loop) or not free[0]:
        return pragmas
    if is_innermost and last == 0:
        return {0: f"#pragma omp parallel for simd{_condition(loop)}"}
    outer = last if is_innermost else last + 1
    outer = min(outer, (*free, False).index(False)) or 1
    collapse = f" collapse({outer})" if outer > 1 else ""
    return {**pragmas, 0: f"#pragma omp parallel for{collapse}{_condition(loop)}"}


def _is_free(loop: Loop, variable: Variable) -> bool:
    """Whether two values of `variable` never write one element: each store has it as a subscript, or is plain."""
    return all(store.is_plain or atom(variable) in store.indices for store in stores_of(loop.body))


def _work(loop: Loop) -> Index:
    """Operations in all iterations, roughly."""
    total = constant(0)
    for statement in loop.body:
        values = () if isinstance(statement, Loop) else statement_values(statement)
        total = total + (_work(statement) if isinstance(statement, Loop) else sum(map(_value_work, values)))
    return product(variable.extent for variable in loop.variables) * total


def _value_work(value: Scalar) -> int:
    operations = [each.operation for each in walk(value) if isinstance(each, Apply)]
    return 1 + sum(1 if operation in LIGHT else _HEAVY_OPERATION for operation in operations)


def _may_be_large(loop: Loop) -> bool:
    work = _work(loop).constant
    return work is None or work >= PARALLEL_WORK


def _condition(loop: Loop) -> str:
    work = _work(loop)
    return "" if work.constant is not None else f" if ({index_text(work)} >= {PARALLEL_WORK})"


def _has_inner_loop(loop: Loop) -> bool:
    return any(isinstance(statement, Loop) for statement in statements_of(loop.body))


def _neutral(accumulator: Accumulator) -> str:
    dtype, spelling = accumulator.dtype, CPP_TYPES[accumulator.dtype]
    if accumulator.kind in ("max", "min"):
        if dtype in ("f32", "f64"):
            return f"{'-' if accumulator.kind == 'max' else ''}precast::infinity<{spelling}>"
        return f"std::numeric_limits<{spelling}>::{'lowest' if accumulator.kind == 'max' else 'max'}()"
    return literal({"sum": 0, "prod": 1, "any": False, "all": True}[accumulator.kind], dtype)


def _combined(kind: str, name: str, value: str) -> str:
    match kind:
        case "max" | "min":
            return f"{name} = precast::{kind}imum({name}, {value});"
        case "any" | "all":
            return f"{name} = {name} {_REDUCTIONS[kind]} {value};"
    return f"{name} {_REDUCTIONS[kind]}= {value};"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
