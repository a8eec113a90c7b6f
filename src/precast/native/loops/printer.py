"""Loop programs as stable text, for display, golden files and comparing kernels."""

from __future__ import annotations

from collections import Counter

from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index, text_with
from precast.native.loops.program import (
    Accumulate,
    Check,
    FallbackStep,
    Finish,
    Kernel,
    KernelGroup,
    LibraryCall,
    Loop,
    LoopProgram,
    Part,
    Repeat,
    Run,
    SizeSource,
    Slot,
    Statement,
    Step,
    Store,
    statement_values,
    values_of,
)
from precast.native.loops.scalars import (
    Accumulated,
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    operands_of,
    walk,
)


def print_program(program: LoopProgram) -> str:
    """The whole program: signature, steps, results."""
    lines = [f"program {program.name}({', '.join(map(describe_buffer, program.inputs))}):"]
    lines += [_size_text(source, program.inputs[source.position]) for source in program.sizes]
    for step in program.steps:
        lines += ["", *("  " + line for line in print_step(step))]
    lines += ["", f"  return {', '.join(_result_text(result) for result in program.results)}"]
    return "\n".join(lines) + "\n"


def print_step(step: Step) -> list[str]:
    match step:
        case Kernel():
            return print_kernel(step)
        case KernelGroup(name, members):
            lines = [line for each in members for line in print_kernel(each)]
            return [f"group {name}: {len(members)} kernels as one", *("  " + line for line in lines)]
        case LibraryCall():
            inputs, outputs = (", ".join(map(_view_text, views)) for views in (step.own_inputs, step.outputs))
            numbers = "".join(f", {number}" for number in step.numbers)
            finishes = [f"  first {_finish_text(each, step)}" for each in step.prologue]
            finishes += [f"  then {_finish_text(each, step)}" for each in step.epilogue]
            return [f"call {step.name}: {outputs} = {step.routine}({inputs}{numbers})", *finishes]
        case Check():
            shown = "" if step.shown is None else f" of {step.shown.name}"
            return [f"check {step.name}: {step.failed.name} is {step.error} error {step.message!r}{shown}"]
        case Run():
            choice = "" if step.choice is None else f" by {step.choice.name}"
            return [f"run {step.name}{choice}: {_operands_text(step)}", *_part_lines(step.parts)]
        case Repeat():
            times = "while the last part says so" if step.count is None else f"{step.count} times"
            kinds = f"{step.carried} carried, {step.scanned} by row"
            return [f"repeat {step.name} {times}: {_operands_text(step)} ({kinds})", *_part_lines(step.parts)]
        case FallbackStep():
            outputs = ", ".join(map(describe_buffer, step.outputs))
            arguments = [_argument_text(argument, step.inputs) for argument in step.arguments]
            arguments += [f"{key}={_argument_text(value, step.inputs)}" for key, value in step.keyword_arguments]
            return [f"fallback {step.name}: {outputs} = {step.operator}({', '.join(arguments)})"]


def _operands_text(step: Run | Repeat) -> str:
    outputs, inputs = ", ".join(map(describe_buffer, step.outputs)), ", ".join(each.name for each in step.inputs)
    return f"{outputs} = ({inputs})"


def _part_lines(parts: tuple[Part, ...]) -> list[str]:
    return ["  " + line if line else "" for part in parts for line in print_program(part.program).splitlines()]


def print_kernel(kernel: Kernel) -> list[str]:
    lines = [f"kernel {kernel.name}:"]
    lines += [f"  # {origin}" for origin in kernel.origins]
    return lines + ["  " + line for line in _Body(kernel.body).lines(kernel.body)]


def describe_buffer(buffer: Buffer) -> str:
    """``name: f32[8, 6]``, with strides where they are not row-major."""
    sizes = ", ".join(map(str, buffer.shape))
    strides = "" if buffer.is_contiguous else f" strides ({', '.join(map(str, buffer.strides))})"
    return f"{buffer.name}: {buffer.dtype}[{sizes}]{strides}"


def _size_text(source: SizeSource, buffer: Buffer) -> str:
    place = "value" if source.dimension is None else f"shape[{source.dimension}]"
    bound = "" if source.bound is None else f", at most {source.bound}"
    return f"  size {source.symbol} = {buffer.name}.{place}{bound}"


def _view_text(view: View) -> str:
    sizes, strides = ", ".join(map(str, view.shape)), ", ".join(map(str, view.strides))
    offset = "" if view.offset.constant == 0 else f" + {view.offset}"
    return f"{view.buffer.name}{offset}: {view.dtype}[{sizes}] strides ({strides})"


def _finish_text(finish: Finish, call: LibraryCall) -> str:
    return (
        finish.operation if finish.operand is None else f"{finish.operation} {_view_text(call.inputs[finish.operand])}"
    )


def _result_text(result: Buffer | Index | None) -> str:
    return describe_buffer(result) if isinstance(result, Buffer) else str(result)


def _argument_text(argument: object, inputs: tuple[Buffer, ...]) -> str:
    if isinstance(argument, Slot):
        return inputs[argument.position].name
    if isinstance(argument, tuple):
        return f"[{', '.join(_argument_text(item, inputs) for item in argument)}]"
    return str(argument) if isinstance(argument, Index) else repr(argument)


class _Body:
    """Prints one kernel's statements; values with a name or several readers get a line of their own."""

    def __init__(self, body: tuple[Statement, ...]):
        readers = Counter(id(operand) for value in walk(*values_of(body)) for operand in operands_of(value))
        readers.update(id(value) for value in values_of(body))
        self.shared = {key for key, count in readers.items() if count > 1}
        self.texts: dict[int, str] = {}
        self.names: set[str] = set()

    def lines(self, body: tuple[Statement, ...]) -> list[str]:
        lines: list[str] = []
        for statement in body:
            match statement:
                case Loop():
                    lines += self.loop_lines(statement)
                case Store():
                    lines += self.store_lines(statement)
                case Accumulate(accumulator, value):
                    lines += self.value_lines(value)
                    lines.append(f"{accumulator.name} <- {accumulator.kind} {self.texts[id(value)]}")
        return lines

    def store_lines(self, store: Store) -> list[str]:
        lines = [line for value in statement_values(store) for line in self.value_lines(value)]
        value = (
            self.texts[id(store.value)] if store.combine is None else f"{store.combine} {self.texts[id(store.value)]}"
        )
        sign = "=" if store.combine is None else "<-"
        guard = "" if store.guard is None else f" if {self.texts[id(store.guard)]}"
        return [*lines, f"{describe_buffer(store.buffer)} @ [{self.join(store.indices)}] {sign} {value}{guard}"]

    def loop_lines(self, loop: Loop) -> list[str]:
        declared = [f"{each.name} = {each.kind} over {each.dtype}" for each in loop.accumulators]
        header = ", ".join(f"{variable.name} < {variable.extent}" for variable in loop.variables)
        return [*declared, f"for {header}:", *("  " + line for line in self.lines(loop.body))]

    def value_lines(self, root: Scalar) -> list[str]:
        lines: list[str] = []
        for value in walk(root):
            if id(value) in self.texts:
                continue
            text = self.text(value)
            needs_line = isinstance(value, Named) or (id(value) in self.shared and not isinstance(value, Constant))
            if needs_line and not (isinstance(value, Load) and value.guard is None):
                name = self.fresh_name(value.name if isinstance(value, Named) else "t")
                lines.append(f"{name} = {text}")
                text = name
            self.texts[id(value)] = text
        return lines

    def fresh_name(self, wish: str) -> str:
        name, number = wish, 0
        while name in self.names:
            number += 1
            name = f"{wish}_{number}"
        self.names.add(name)
        return name

    def text(self, value: Scalar) -> str:
        match value:
            case Load(buffer, indices, guard):
                text = f"{buffer.name}[{self.join(indices)}]"
                return text if guard is None else f"({text} if {self.texts[id(guard)]} else 0)"
            case Constant(number, dtype):
                return f"{number!r}:{dtype}"
            case IndexValue(position, dtype):
                return f"({self.join((position,))}):{dtype}"
            case Apply(operation, arguments, _):
                return f"{operation}({', '.join(self.texts[id(argument)] for argument in arguments)})"
            case Cast(inner, dtype):
                return f"{dtype}({self.texts[id(inner)]})"
            case Named(_, inner):
                return self.texts[id(inner)]
            case Accumulated(accumulator):
                return accumulator.name

    def join(self, indices: tuple[Index, ...]) -> str:
        """Join subscripts, with computed ones in brackets."""
        names = {each: f"{{{self.texts[id(each.value)]}}}" for index in indices for each in index.computed}
        return ", ".join(text_with(index, names) for index in indices)
