"""Entries → GPU programs and the Triton sources of their kernels; equal kernels are shared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from precast.artifact.gpu_programs import (
    Call,
    CallBack,
    Expression,
    Expressions,
    Finish,
    GpuProgram,
    Launch,
    Place,
    RepeatPart,
    RunPart,
    Size,
    Step,
    Window,
)
from precast.errors import LoweringError
from precast.native.describe import Entry
from precast.native.loops.buffers import Buffer, View, whole
from precast.native.loops.expressions import index_to_json
from precast.native.loops.index import Index, floor_divide, product, symbol
from precast.native.loops.program import (
    Check,
    FallbackStep,
    Kernel,
    KernelGroup,
    LibraryCall,
    Loop,
    LoopProgram,
    Repeat,
    Run,
    all_steps,
    read_by,
    written_by,
)
from precast.native.loops.program import Step as LoopStep
from precast.native.passes.memory import plan
from precast.native.targets.cuda.codegen.groups import GroupText, write_group
from precast.native.targets.cuda.codegen.nests import NestWriter
from precast.native.targets.cuda.codegen.routines import KERNELS, write_routine
from precast.native.targets.cuda.codegen.tiling import choose_tiling
from precast.native.targets.cuda.codegen.types import POINTER_TYPES
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.runtime.gpu.execute import CONVOLUTIONS

_LIBRARY = (
    "div_floor", "div_floor_whole", "divide_whole", "floor_divide", "floor_remainder", "left_shift", "maximum",
    "minimum", "modulo", "modulo_whole", "multiply", "random_bits", "remainder_whole", "right_shift", "sigmoid",
    "sigmoid_single", "sign",
)  # fmt: skip
_HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
LONGEST_NAME = 60


@dataclass
class Kernels:
    """The kernels so far, each distinct one once."""

    sources: list[KernelSource] = field(default_factory=list)
    loops: list[Kernel | KernelGroup | None] = field(default_factory=list)
    numbers: dict[KernelSource, int] = field(default_factory=dict)

    def add(self, source: KernelSource, loops: Kernel | KernelGroup | None = None) -> int:
        if source not in self.numbers:
            self.numbers[source] = len(self.sources)
            self.sources.append(source)
            self.loops.append(loops)
        return self.numbers[source]


def generate(
    entries: Sequence[Entry],
) -> tuple[tuple[GpuProgram, ...], tuple[KernelSource, ...], tuple[Kernel | KernelGroup | None, ...]]:
    """The programs of the entries, the kernels that they launch, and the loops of these kernels."""
    kernels = Kernels()
    programs = tuple(_Program(entry, kernels, count()).program() for entry in entries)
    return programs, tuple(kernels.sources), tuple(kernels.loops)


class _Program:
    """Writes one program; `numbers` counts the fallback operators, including those of parts."""

    def __init__(self, entry: Entry, kernels: Kernels, numbers: Iterator[int]):
        self.entry, self.kernels, self.callbacks = entry, kernels, numbers
        self.places: dict[Buffer, int] = {}
        self.table: list[Place] = []
        self.steps: list[Step] = []

    def program(self) -> GpuProgram:
        program = self.entry.program
        made_by_torch = _made_by_torch(program)
        arena = plan(program, apart=made_by_torch)
        inputs = [self.place(buffer, "input", number) for number, buffer in enumerate(program.inputs)]
        outputs = [self.place(buffer, "output", number) for number, buffer in enumerate(program.outputs)]
        for buffer in program.temporaries:
            if buffer in made_by_torch:
                self.place(buffer, "library", 0)
            else:
                self.place(buffer, "arena", 0, arena.offsets[buffer])
        for step in program.steps:
            self.steps.append(self.step(step))
        weights = self.entry.weights
        return GpuProgram(
            program.name,
            tuple(self.table),
            tuple(inputs),
            tuple(outputs),
            frozenset(self.places[buffer] for buffer in program.written_inputs),
            tuple(Size(each.symbol, each.position, each.dimension, each.factor, each.offset) for each in program.sizes),
            number_of(arena.arena_size),
            tuple(self.steps),
            self.deaths(program, made_by_torch),
            tuple(weights.get(buffer.name) for buffer in program.inputs),
            frozenset(self.places[buffer] for buffer in made_by_torch),
        )

    def place(self, buffer: Buffer, kind: str, number: int, offset: Index | None = None) -> int:
        self.places[buffer] = len(self.table)
        layout = numbers_of(buffer.shape), numbers_of(buffer.strides)
        self.table.append(Place(kind, number, 0 if offset is None else number_of(offset), buffer.dtype, *layout))
        return self.places[buffer]

    def step(self, step: LoopStep) -> Step:
        match step:
            case Kernel():
                return self.launch(step)
            case KernelGroup():
                return self.launch_group(step)
            case Check():
                return self.check(step)
            case LibraryCall() if step.routine in KERNELS:
                text = write_routine(step)
                programs, sizes = number_of(text.programs), numbers_of(text.sizes)
                return Launch(self.kernels.add(text.source), programs, self.numbers(text.buffers), sizes)
            case LibraryCall():
                return Call(
                    step.routine,
                    tuple(map(self.window, step.inputs)),
                    tuple(map(self.window, step.outputs)),
                    numbers_of(step.numbers),
                    tuple(Finish(each.operation, each.operand) for each in step.epilogue),
                )
            case FallbackStep():
                return CallBack(next(self.callbacks), self.numbers(step.inputs), self.numbers(step.outputs))
            case Run():
                choice = None if step.choice is None else self.places[step.choice]
                operands = self.numbers(step.inputs), self.numbers(step.outputs)
                return RunPart(self.parts(step), *operands, choice)
            case Repeat():
                operands = self.numbers(step.inputs), self.numbers(step.outputs)
                count = None if step.count is None else number_of(step.count)
                return RepeatPart(self.parts(step), *operands, step.carried, step.scanned, count)
        raise AssertionError(f"programs for GPUs have no {type(step).__name__}")

    def parts(self, step: Run | Repeat) -> tuple[GpuProgram, ...]:
        entries = []
        for part in step.parts:
            assert part.plan is not None, f"the memory of {part.program.name} was not planned"
            if part.program.sizes:
                raise LoweringError(
                    f"the result of {step.name} has a data-dependent size",
                    why="in programs for GPUs that run without torch, all sizes must follow from those of inputs",
                    fix="compute it in process, or package for the CPU",
                    at=step.at if isinstance(step, Run) else None,
                )
            entries.append(Entry(part.program, part.plan))
        return tuple(_Program(entry, self.kernels, self.callbacks).program() for entry in entries)

    def numbers(self, buffers: Iterable[Buffer]) -> tuple[int, ...]:
        return tuple(self.places[buffer] for buffer in buffers)

    def window(self, view: View) -> Window:
        return Window(
            self.places[view.buffer], numbers_of(view.shape), numbers_of(view.strides), number_of(view.offset)
        )

    def launch(self, kernel: Kernel) -> Launch:
        source, writer = write_kernel(kernel)
        iterations, block = product(variable.extent for variable in writer.variables), writer.tiling.x_block
        programs = floor_divide(iterations + (block - 1), block)
        sizes = tuple(symbol(name) for name in writer.sizes)
        return Launch(
            self.kernels.add(source, kernel), number_of(programs), self.numbers(writer.buffers), numbers_of(sizes)
        )

    def launch_group(self, group: KernelGroup) -> Launch:
        source, text = write_kernel_group(group)
        return Launch(
            self.kernels.add(source, group),
            number_of(text.programs),
            self.numbers(text.buffers),
            numbers_of(text.sizes),
        )

    def check(self, step: Check) -> Launch:
        message = f"{step.error.capitalize()}Error: {step.message}"
        text = "\n".join([
            _HEADER, "", "@triton.jit", "def check(p0):",
            f"    tl.device_assert(tl.load(p0) == 0, {message!r})", "",
        ])  # fmt: skip
        source = KernelSource("check", text, (POINTER_TYPES["bool"],), 1, asserts=True)
        return Launch(self.kernels.add(source), 1, self.numbers([step.failed]))

    def deaths(self, program: LoopProgram, made_by_torch: frozenset[Buffer]) -> tuple[tuple[int, ...], ...]:
        last = {
            buffer: number
            for number, step in enumerate(program.steps)
            for buffer in (*read_by(step), *written_by(step))
            if buffer in made_by_torch and buffer not in program.outputs
        }
        dead: list[list[int]] = [[] for _ in program.steps]
        for buffer, number in last.items():
            dead[number].append(self.places[buffer])
        return tuple(map(tuple, dead))


def number_of(index: Index) -> Expression:
    """An index over sizes in the form of programs."""
    return index_to_json(index) if index.constant is None else index.constant


def numbers_of(indices: Iterable[Index]) -> Expressions:
    """The same for several."""
    return tuple(map(number_of, indices))


def listing(entries: Sequence[Entry]) -> dict[LoopStep, str]:
    """The kernel of each step, for display."""
    found: dict[LoopStep, str] = {}
    for step in (step for entry in entries for step in all_steps(entry.program)):
        if isinstance(step, Kernel):
            found[step] = write_kernel(step)[0].text
        elif isinstance(step, KernelGroup):
            found[step] = write_kernel_group(step)[0].text
    return found


def write_kernel_group(group: KernelGroup) -> tuple[KernelSource, GroupText]:
    """The source of a group of kernels, and its launch arguments."""
    name = _name(group.members[0])
    text = write_group(group, name)
    source = "\n".join([_imports(text.lines), *text.lines, ""])
    return KernelSource(name, source, text.signature, 4), text


def _imports(lines: Sequence[str]) -> str:
    used = [each for each in _LIBRARY if any(re.search(rf"\b{each}\b", line) for line in lines)]
    library = "from precast.native.targets.cuda.library.functions import " + ", ".join(used)
    return _HEADER + (library + "\n" if used else "")


def write_kernel(kernel: Kernel) -> tuple[KernelSource, NestWriter]:
    """The source of one kernel, and its writer."""
    match kernel.body:
        case (Loop(variables, body, ()),):
            tiling = choose_tiling(variables, body)
        case _:
            tiling = choose_tiling((), kernel.body)
    writer = NestWriter(kernel, tiling)
    lines = writer.write()
    parameters = [*writer.pointers.values(), *(f"n{number}" for number in range(len(writer.sizes)))]
    name = _name(kernel)
    head = [_imports(lines), "", "@triton.jit", f"def {name}({', '.join(parameters)}):"]
    text = "\n".join([*head, *lines, ""])
    signature = tuple(POINTER_TYPES[buffer.dtype] for buffer in writer.buffers) + ("i64",) * len(writer.sizes)
    return KernelSource(name, text, signature, tiling.warps), writer


def _name(kernel: Kernel) -> str:
    """Named after the operators that it computes: equal layers have equal names."""
    operators = dict.fromkeys(origin.rpartition(": ")[2].split(".")[1] for origin in kernel.origins if "." in origin)
    words = re.sub(r"\W", "_", "_".join(operators))[:LONGEST_NAME]
    return f"fused_{words or 'loops'}"


def _made_by_torch(program: LoopProgram) -> frozenset[Buffer]:
    """Results of torch operators: placing them in the arena would only add a copy."""
    by_torch = [step for step in program.steps if _is_by_torch(step)]
    made = {buffer for step in by_torch for buffer in written_by(step)}
    others = {buffer for step in program.steps if step not in by_torch for buffer in written_by(step)}
    return frozenset(made - others - set(program.inputs))


def _is_by_torch(step: LoopStep) -> bool:
    """Whether torch allocates a step's results, as whole buffers."""
    match step:
        case FallbackStep():
            return True
        case LibraryCall(_, routine, _, outputs):
            return routine in CONVOLUTIONS and all(view == whole(view.buffer) for view in outputs)
    return False
