"""Host code: the function that runs an entry's steps in order, and the tables that describe it.

With ``profile``, each step has a timer.

Before::

    kernels::exp(x, result);

After::

    { const precast::timed timed(forward_times[3]);
    kernels::exp(x, result);
    }
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from precast.artifact.dtypes import DTYPES
from precast.native.describe import Entry, Storage, describe_entry, input_name, output_name, state_buffers
from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index
from precast.native.loops.program import (
    Check,
    FallbackStep,
    Finish,
    Kernel,
    KernelGroup,
    LibraryCall,
    LoopProgram,
    Part,
    Plan,
    Repeat,
    Run,
    SizeSource,
    Step,
    found_sizes,
)
from precast.native.targets.cpu.codegen.groups import row_type
from precast.native.targets.cpu.codegen.kernels import KernelFunction
from precast.native.targets.cpu.codegen.size_functions import HEADER as SIZES_HEADER
from precast.native.targets.cpu.codegen.size_functions import size_functions, size_lines
from precast.native.targets.cpu.codegen.types import (
    MEMORY_TYPES,
    Namer,
    identifier,
    index_text,
    text_literal,
)

TIMERS_HEADER = '#include "precast_profile.h"'


def timed_step(prefix: str, number: int, lines: Sequence[str]) -> list[str]:
    """The lines of a step with a timer around them."""
    return [f"    {{ const precast::timed timed({prefix}_times[{number}]);", *lines, "    }"]


def times_of(prefix: str, steps: int) -> list[str]:
    """The variables that hold an entry's times."""
    return [f"static precast::step_time {prefix}_times[{max(1, steps)}];"]


def times_function(entries: Sequence[Entry]) -> list[str]:
    """The function that exports them."""
    tables = ", ".join(f"{identifier(entry.name)}_times" for entry in entries)
    return [
        "const precast::step_time* precast_step_times(size_t entry) {",
        f"    static const precast::step_time* const times[] = {{{tables}}};",
        f"    return entry < {len(entries)} ? times[entry] : nullptr;",
        "}",
        "",
    ]


FINISHING = frozenset({"matmul", "convolution", "depthwise_convolution", "quantized_product"})
"""Routines with an epilogue."""
WRAPPING = frozenset({"depthwise_convolution"})
"""Routines with a prologue too."""


@dataclass(frozen=True)
class Call:
    """A kernel's function and the arguments of this call; `starts` are the element offsets of rebased tensors."""

    function: KernelFunction
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    starts: Mapping[Buffer, Index]


@dataclass(frozen=True)
class GroupCall:
    """A group's function, and the buffers and sizes of each member."""

    function: KernelFunction
    rows: tuple[tuple[tuple[Buffer, ...], tuple[Index, ...]], ...]


@dataclass(frozen=True)
class Embedded:
    """Data linked into the library: the linker decides where the weights are."""

    weights_symbol: str
    weights_size: int
    manifest: str


def write_host(
    entries: Sequence[Entry],
    calls: Sequence[dict[Step, Call | GroupCall]],
    *,
    storages: Mapping[str, Storage],
    embedded: Embedded | None,
    profile: bool = False,
) -> str:
    """The main unit: declarations of kernels, one function per entry, the tables."""
    state = state_buffers(entries)
    places = {name: number for number, name in enumerate(state)}
    updated = {name for entry in entries for name in entry.updated_state}
    declarations = {call.function.declaration for each in calls for call in each.values()}
    parts = ['#include "precast_host.h"', '#include "precast_kernels.h"', SIZES_HEADER]
    parts += [*([TIMERS_HEADER] if profile else []), ""]
    parts += ["namespace kernels {", *sorted(declarations), "}  // namespace kernels", ""]
    for number, (entry, kernels) in enumerate(zip(entries, calls, strict=True)):
        parts += _EntryWriter(number, entry, kernels, places, updated, profile=profile).lines()
    parts += ["namespace precast {", "const entry entries[] = {"]
    parts += [f"    {_table_row(entry)}," for entry in entries]
    parts += ["};", f"const size_t entry_count = {len(entries)};", "}  // namespace precast", ""]
    parts += [*_state_table(state, updated, storages), *_embedded_data(embedded)]
    parts += times_function(entries) if profile else []
    return "\n".join(parts)


def write_steps(entry: Entry, kernels: dict[Step, Call | GroupCall]) -> dict[Step, str]:
    """The host code of each step of an entry, at any depth."""
    places = {name: number for number, name in enumerate(state_buffers([entry]))}
    writer = _EntryWriter(0, entry, kernels, places, entry.updated_state, profile=False)
    writer.lines()
    return {step: dedent("\n".join(lines)) for step, lines in writer.written.items()}


class _EntryWriter:
    def __init__(
        self,
        number: int,
        entry: Entry,
        kernels: dict[Step, Call | GroupCall],
        places: Mapping[str, int],
        updated: set[str],
        *,
        profile: bool,
    ):
        constants = {name for name, state in entry.weights.items() if state not in updated}
        self.constants = {buffer for buffer in entry.program.inputs if buffer.name in constants}
        self.places, self.profile, self.fallbacks = places, profile, 0
        self.number, self.entry, self.kernels = number, entry, kernels
        self.found = {source.symbol: number for number, source in enumerate(found_sizes(entry.program))}
        self.prefix = identifier(entry.name)
        self.namer = Namer()
        symbols = {identifier(source.symbol) for source in entry.program.sizes} | set(map(identifier, self.found))
        self.namer.taken |= symbols | {"sizes", "layouts", "status", "frame", "inputs", "outputs", "numbers"}
        self.pointers: dict[Buffer, str] = {}
        self.written: dict[Step, list[str]] = {}

    def lines(self) -> list[str]:
        program = self.entry.program
        weights, updates = self.entry.weights, self.entry.updates
        inputs = [
            self._spec_text(buffer, input_name(self.entry, buffer), weights.get(buffer.name))
            for buffer in program.inputs
        ]
        outputs = [
            self._spec_text(buffer, output_name(self.entry, buffer), updates.get(buffer.name))
            for buffer in program.outputs
        ]
        sizes = [_size_text(source, *self.entry.ranges.get(source.symbol, (0, None))) for source in program.sizes]
        return [
            *_table("tensor_spec", f"{self.prefix}_inputs", inputs),
            *_table("tensor_spec", f"{self.prefix}_outputs", outputs),
            *_table("size_source", f"{self.prefix}_sizes", sizes),
            f"static const char {self.prefix}_json[] = {text_literal(json.dumps(describe_entry(self.entry)))};",
            "",
            *size_functions(self.prefix, self.entry),
            *(times_of(self.prefix, len(program.steps)) if self.profile else []),
            *self._run(),
        ]

    def _spec_text(self, buffer: Buffer, name: str, state: str | None) -> str:
        place = -1 if state is None else self.places[state]
        seen = self.entry.outside(buffer)
        is_written = str(buffer in self.entry.program.written_inputs).lower()
        return f"{{{text_literal(name)}, {_dtype_text(seen.dtype)}, {len(seen.shape)}, {place}, {is_written}}}"

    def _run(self) -> list[str]:
        program = self.entry.program
        lines = [f"static int32_t {self.prefix}_run(const precast::frame& frame) {{"]
        lines += size_lines(program.sizes, "frame.sizes")
        for kind, buffers in (("inputs", program.inputs), ("outputs", program.outputs)):
            lines += [self._pointer(buffer, f"static_cast<{_memory_type(buffer)}*>(frame.{kind}[{n}])")
                      for n, buffer in enumerate(buffers)]  # fmt: skip
        lines += self._temporaries(program, self.entry.plan, "frame.arena")
        for number, step in enumerate(program.steps):
            written = self._step(step)
            lines += timed_step(self.prefix, number, written) if self.profile else written
        return [*lines, "    return PRECAST_OK;", "}", ""]

    def _step(self, step: Step) -> list[str]:
        lines = self.written[step] = self._lines_of(step)
        return lines

    def _lines_of(self, step: Step) -> list[str]:
        match step:
            case Kernel() | KernelGroup():
                return self._kernel_call(self.kernels[step])
            case LibraryCall():
                return self._library_call(step)
            case Check():
                return self._check(step)
            case Run():
                return self._run_step(step)
            case Repeat():
                return self._repeat_step(step)
            case FallbackStep():
                self.fallbacks += 1
                return self._fallback_call(step, self.fallbacks - 1)

    def _pointer(self, buffer: Buffer, address: str) -> str:
        self.pointers[buffer] = self.namer.fresh(buffer.name)
        return f"    [[maybe_unused]] auto* {self.pointers[buffer]} = {address};"

    def _temporaries(self, program: LoopProgram, plan: Plan, arena: str) -> list[str]:
        places = ((buffer, f"{arena} + {_term(plan.offsets[buffer])}") for buffer in program.temporaries)
        return [self._pointer(buffer, f"reinterpret_cast<{_memory_type(buffer)}*>({at})") for buffer, at in places]

    def _run_step(self, step: Run) -> list[str]:
        inputs, outputs = ([self.pointers[each] for each in buffers] for buffers in (step.inputs, step.outputs))
        constants = [each in self.constants for each in step.inputs]
        parts = [self._part(part, inputs, outputs, step.scratch, constants) for part in step.parts]
        if step.choice is None:
            return ["    {", *parts[0], "    }"]
        otherwise, chosen = parts
        return [f"    if (*{self.pointers[step.choice]}) {{", *chosen, "    } else {", *otherwise, "    }"]

    def _repeat_step(self, step: Repeat) -> list[str]:
        """A loop with double-buffered carried values: they alternate between the outputs and the spares."""
        turn, flag = self.namer.fresh("turn"), self.namer.fresh("goes_on")
        first, values, now, following = [], [], [], []
        for source, target, spare in zip(step.inputs[: step.carried], step.outputs, step.spares, strict=False):
            pair, size = self.namer.fresh("carried"), index_text(source.byte_size)
            pointers = self.pointers[target], self.pointers[spare]
            first.append(f"    if ({size}) std::memcpy({pointers[0]}, {self.pointers[source]}, {size});")
            values.append(f"    {_memory_type(target)}* const {pair}[] = {{{', '.join(pointers)}}};")
            now.append(f"{pair}[{turn} & 1]")
            following.append(f"{pair}[~{turn} & 1]")
        last = [f"    if ({turn} & 1) {{", *(f"    {line}" for line in self._taken_back(step)), "    }"]
        filled = [self._row(each, turn) for each in step.outputs[step.carried :]]
        scanned = [self._row(each, turn) for each in step.inputs[step.carried :][: step.scanned]]
        others = step.inputs[step.carried + step.scanned :]
        further, constants = [self.pointers[each] for each in others], [each in self.constants for each in others]
        changing = [False] * (step.carried + step.scanned)
        arguments = [*now, *scanned, *further], [*following, *filled]
        body = self._part(step.body, *arguments, step.scratch, [*changing, *constants])
        condition = [f"    if ({turn} >= {index_text(step.count)}) break;"] if step.count is not None else []
        for part in step.parts[1:]:
            asked = self._part(part, [*now, *further], [f"&{flag}"], step.scratch, [*changing, *constants])
            condition = [f"    {MEMORY_TYPES['bool']} {flag};", "    {", *asked, "    }", f"    if (!{flag}) break;"]
        return [
            "    {",
            *first,
            *values,
            f"    int64_t {turn} = 0;",
            f"    for (;; ++{turn}) {{",
            *condition,
            *body,
            "    }",
            *(last if step.carried else []),
            "    }",
        ]

    def _taken_back(self, step: Repeat) -> list[str]:
        pairs = [(each, index_text(each.byte_size)) for each in step.spares]
        return [f"    if ({size}) std::memcpy({self.pointers[target]}, {self.pointers[spare]}, {size});"
                for (spare, size), target in zip(pairs, step.outputs, strict=False)]  # fmt: skip

    def _row(self, buffer: Buffer, turn: str) -> str:
        return f"{self.pointers[buffer]} + {turn} * ({index_text(buffer.strides[0])})"

    def _part(
        self, part: Part, inputs: list[str], outputs: list[str], scratch: Buffer | None, constants: list[bool]
    ) -> list[str]:
        """The steps of a part, with its inputs and outputs bound to the outer names."""
        assert part.plan is not None, f"the memory of {part.program.name} was not planned"
        program, around = part.program, (self.pointers, self.constants)
        arena = "" if scratch is None else f"reinterpret_cast<char*>({self.pointers[scratch]})"
        self.pointers = {}
        self.constants = {buffer for buffer, is_one in zip(program.inputs, constants, strict=True) if is_one}
        lines = [self._pointer(buffer, text) for buffer, text in zip(program.inputs, inputs, strict=True)]
        lines += [self._pointer(buffer, text) for buffer, text in zip(program.outputs, outputs, strict=True)]
        for source in program.sizes:
            lines += self._size_lines(source, self.pointers[program.inputs[source.position]])
        lines += self._temporaries(program, part.plan, arena)
        lines += [line for step in program.steps for line in self._step(step)]
        self.pointers, self.constants = around
        return lines

    def _size_lines(self, source: SizeSource, pointer: str) -> list[str]:
        """Read a data-dependent size; one above its bound is an error."""
        assert source.bound is not None, f"nothing bounds {source.symbol}"
        name = identifier(source.symbol)
        message = text_literal(f"a size that depends on data is %lld, but at most {source.bound} was expected")
        lines = [
            f"    [[maybe_unused]] const int64_t {name} = *{pointer};",
            f"    if ({name} < 0 || {name} > {index_text(source.bound)})",
            f"        return precast::fail(PRECAST_FAILED, {message}, static_cast<long long>({name}));",
        ]
        if source.symbol in self.found:
            lines.append(f"    frame.found[{self.found[source.symbol]}] = {name};")
        return lines

    def _moved_pointer(self, buffer: Buffer, by: Index | None) -> str:
        moved = "" if by is None or by.constant == 0 else f" + {_term(by)}"
        return f"{self.pointers[buffer]}{moved}"

    def _kernel_call(self, call: Call | GroupCall) -> list[str]:
        name = call.function.name
        if isinstance(call, Call):
            pointers = [self._moved_pointer(buffer, call.starts.get(buffer)) for buffer in call.buffers]
            arguments = [*pointers, *map(identifier, call.sizes)]
            return [f"    kernels::{name}({', '.join(arguments)});"]
        rows = [[*(self.pointers[each] for each in buffers), *map(index_text, sizes)] for buffers, sizes in call.rows]
        return [
            "    {",
            f"        const kernels::{row_type(name)} tensors[] = {{",
            *(f"            {{{', '.join(row)}}}," for row in rows),
            "        };",
            f"        kernels::{name}(tensors, {len(rows)});",
            "    }",
        ]

    def _check(self, step: Check) -> list[str]:
        status = {"index": "PRECAST_INDEX_OUT_OF_RANGE", "value": "PRECAST_FAILED"}[step.error]
        message, arguments = step.message.replace("%", "%%"), ""
        if step.shown is not None:
            pointer = self.pointers[step.shown]
            numbers = re.findall(r"{(\d+)}", message)
            arguments = "".join(f", static_cast<long long>({pointer}[{number}])" for number in numbers)
            message = re.sub(r"{\d+}", "%lld", message)
        failure = f"precast::fail({status}, {text_literal(message)}{arguments})"
        return [f"    if (*{self.pointers[step.failed]}) return {failure};"]

    def _library_call(self, step: LibraryCall) -> list[str]:
        """Operands as address, layout and type, then integers, then the epilogue."""
        lines = [f"    {{  // {', '.join(step.origins)}"]
        for kind, views in (("inputs", step.inputs), ("outputs", step.outputs)):
            lines.append(f"        const precast::strided {kind}[] = {{")
            lines += [f"            {self._strided(view)}," for view in views]
            lines.append("        };")
        arguments = ["frame.context", "inputs", "outputs", "nullptr"]
        if step.numbers:
            lines.append(f"        const int64_t numbers[] = {{{_list(step.numbers)}}};")
            arguments[-1] = "numbers"
        for name, finishes, routines in (("first", step.prologue, WRAPPING), ("finishes", step.epilogue, FINISHING)):
            if finishes:
                lines.append(f"        const precast::finish {name}[] = {{{', '.join(map(_finish_text, finishes))}}};")
            if step.routine in routines:
                arguments.append(f"{{{name if finishes else 'nullptr'}, {len(finishes)}}}")
        call = f"precast::{step.routine}({', '.join(arguments)})"
        return [*lines, f"        if (const auto status = {call}) return status;", "    }"]

    def _strided(self, view: View) -> str:
        data = self._moved_pointer(view.buffer, view.offset)
        is_constant = str(view.buffer in self.constants).lower()
        layout = f"{{{_list(view.shape)}}}, {{{_list(view.strides)}}}"
        return f"{{{_dtype_text(view.dtype)}, {len(view.shape)}, {is_constant}, {data}, {layout}}}"

    def _fallback_call(self, step: FallbackStep, number: int) -> list[str]:
        tensors = [*step.inputs, *step.outputs]
        lines = [f"    {{  // {origin}" for origin in step.origins]
        for position, buffer in enumerate(tensors):
            lines.append(f"        int64_t shape_{position}[] = {{{_list(buffer.shape) or '0'}}};")
            lines.append(f"        int64_t strides_{position}[] = {{{_list(buffer.strides) or '0'}}};")
        rows = [self._tensor(buffer, position) for position, buffer in enumerate(tensors)]
        inputs, outputs = rows[: len(step.inputs)], rows[len(step.inputs) :]
        lines.append(f"        const precast_tensor inputs[] = {{{', '.join(inputs) or '{}'}}};")
        lines.append(f"        const precast_tensor outputs[] = {{{', '.join(outputs) or '{}'}}};")
        lines.append(
            f"        if (const auto status = precast::call_fallback(frame, {self.number}, {number}, inputs, "
            f"{len(inputs)}, outputs, {len(outputs)}))"
        )
        return [*lines, "            return status;", "    }"]

    def _tensor(self, buffer: Buffer, position: int) -> str:
        parts = [self.pointers[buffer], "{1, 0}", str(len(buffer.shape)), _dtype_text(buffer.dtype)]
        return f"{{{', '.join([*parts, f'shape_{position}', f'strides_{position}', '0'])}}}"


def _finish_text(finish: Finish) -> str:
    operand = -1 if finish.operand is None else finish.operand
    return f"{{precast::finish_kind::{finish.operation}, {operand}}}"


def _size_text(source: SizeSource, lower: int, upper: int | None) -> str:
    dimension = -1 if source.dimension is None else source.dimension
    end = "INT64_MAX" if upper is None else str(upper)
    return f"{{{source.position}, {dimension}, {source.factor}, {source.offset}, {lower}, {end}}}"


def _state_table(state: Mapping[str, Buffer], updated: set[str], storages: Mapping[str, Storage]) -> list[str]:
    """The model's named tensors and, if known, where they are in stored weights."""
    lines, rows = list[str](), list[str]()
    for number, (name, buffer) in enumerate(state.items()):
        storage = storages.get(name)
        stored = buffer.strides if storage is None else storage.strides
        for kind, numbers in (("shape", buffer.shape), ("strides", buffer.strides), ("stored", stored)):
            lines.append(f"static const int64_t state_{number}_{kind}[] = {{{', '.join(map(str, numbers)) or '0'}}};")
        home = "nullptr" if storage is None else text_literal(storage.name)
        parts = [
            text_literal(name), _dtype_text(buffer.dtype), str(len(buffer.shape)),
            f"state_{number}_shape", f"state_{number}_strides", str(name in updated).lower(), home,
            f"state_{number}_stored", str(0 if storage is None else storage.offset),
        ]  # fmt: skip
        rows.append(f"{{{', '.join(parts)}}}")
    lines += _table("state_spec", "model_states", rows)
    lines += ["namespace precast {", "const state_spec* const states = model_states;"]
    return [*lines, f"const size_t state_count = {len(state)};", "}  // namespace precast", ""]


def _embedded_data(embedded: Embedded | None) -> list[str]:
    if embedded is None:
        return [
            "namespace precast {",
            'const embedded_data embedded = {nullptr, 0, ""};',
            "}  // namespace precast",
            "",
        ]
    symbol, manifest = embedded.weights_symbol, text_literal(embedded.manifest)
    lines = []
    if embedded.weights_size:
        lines.append(f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];')
    weights = f"{symbol if embedded.weights_size else 'nullptr'}, {embedded.weights_size}"
    lines += ["namespace precast {", f"const embedded_data embedded = {{{weights}, {manifest}}};"]
    return [*lines, "}  // namespace precast", ""]


def _table_row(entry: Entry) -> str:
    prefix, program, found = identifier(entry.name), entry.program, found_sizes(entry.program)
    parts = [
        text_literal(entry.name), f"{prefix}_json", f"{prefix}_inputs", str(len(program.inputs)), f"{prefix}_outputs",
        str(len(program.outputs)), f"{prefix}_sizes", str(len(program.sizes)), f"{prefix}_layouts",
        f"{prefix}_arena_size", f"{prefix}_run", str(len(entry.fallbacks)), f"{prefix}_broken_condition",
        str(len(found)), f"{prefix}_found_layouts" if found else "nullptr",
    ]  # fmt: skip
    return f"{{{', '.join(parts)}}}"


def _table(kind: str, name: str, rows: list[str]) -> list[str]:
    if not rows:
        return [f"static const precast::{kind}* const {name} = nullptr;"]
    return [f"static const precast::{kind} {name}[] = {{", *(f"    {row}," for row in rows), "};"]


def _memory_type(buffer: Buffer) -> str:
    return MEMORY_TYPES[buffer.dtype]


def _dtype_text(dtype: str) -> str:
    return f"{{{DTYPES[dtype].code}, {DTYPES[dtype].bits}, 1}}"


def _list(numbers: Sequence[Index]) -> str:
    return ", ".join(map(index_text, numbers))


def _term(index: Index) -> str:
    text = index_text(index)
    return text if len(index.terms) <= 1 else f"({text})"
