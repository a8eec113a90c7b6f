"""A GPU program as data, and as JSON: where tensors are, and what is launched and called in which order.

Numbers that depend on sizes are expressions, so that one description serves all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precast.artifact.dtypes import DTYPES
from precast.artifact.expressions import check_expression
from precast.artifact.schema import Json, damaged

Expression = Json
"""An integer, or an expression of sizes: ``artifact.expressions``."""
Expressions = tuple[Expression, ...]


@dataclass(frozen=True)
class Place:
    """A tensor's memory: input or output `number`, or part of the arena from `offset` on, or memory of its own."""

    kind: str
    number: int
    offset: Expression
    dtype: str
    shape: Expressions
    strides: Expressions


@dataclass(frozen=True)
class Launch:
    """Run kernel number `kernel` as `programs` programs, over places by their numbers, and sizes."""

    kernel: int
    programs: Expression
    places: tuple[int, ...]
    sizes: Expressions = ()


@dataclass(frozen=True)
class Window:
    """A strided view of a place."""

    place: int
    shape: Expressions
    strides: Expressions
    offset: Expression


@dataclass(frozen=True)
class Finish:
    """The epilogue of a routine: an operation, with input number `operand` if it takes one."""

    operation: str
    operand: int | None


@dataclass(frozen=True)
class Call:
    """Call a library routine."""

    routine: str
    inputs: tuple[Window, ...]
    outputs: tuple[Window, ...]
    numbers: Expressions = ()
    epilogue: tuple[Finish, ...] = ()


@dataclass(frozen=True)
class CallBack:
    """Run operator number `number` of the eager fallbacks, on whole places."""

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
    """Run the first part `count` times, or while the second returns true.

    The first `carried` inputs are replaced by the first results after each iteration, the next `scanned` have a row for
    each iteration, and so have the results after the carried ones.
    """

    parts: tuple[GpuProgram, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    carried: int
    scanned: int
    count: Expression | None


Step = Launch | Call | CallBack | RunPart | RepeatPart


@dataclass(frozen=True)
class Size:
    """Where a size is read: a dimension of input number `position`, or its value; `factor` times it, plus `offset`."""

    symbol: str
    position: int
    dimension: int | None
    factor: int
    offset: int


@dataclass(frozen=True)
class GpuProgram:
    """Everything that one call does. `inputs` and `outputs` are places by their numbers.

    `written` are the inputs that it writes into; `dead` are, for each step, places with memory of their own
    that are not read afterwards.
    """

    name: str
    places: tuple[Place, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: frozenset[int]
    sizes: tuple[Size, ...]
    arena_size: Expression
    steps: tuple[Step, ...]
    dead: tuple[tuple[int, ...], ...]
    weights: tuple[str | None, ...]
    """For each input, its name among the constants, or None if it is passed at each call."""
    by_library: frozenset[int] = frozenset()
    """Places whose memory a library allocates, since its own operators write them."""


def program_to_json(program: GpuProgram) -> dict[str, Any]:
    """Serialize a program."""
    return {
        "name": program.name,
        "places": [
            [each.kind, each.number, each.offset, each.dtype, each.shape, each.strides] for each in program.places
        ],
        "inputs": program.inputs,
        "outputs": program.outputs,
        "written": sorted(program.written),
        "sizes": [[each.symbol, each.position, each.dimension, each.factor, each.offset] for each in program.sizes],
        "arena": program.arena_size,
        "steps": [_step(each) for each in program.steps],
        "dead": program.dead,
        "weights": program.weights,
        "by_library": sorted(program.by_library),
    }


def _step(step: Step) -> dict[str, Any]:
    match step:
        case Launch(kernel, programs, places, sizes):
            return {"launch": kernel, "programs": programs, "places": places, "sizes": sizes}
        case Call(routine, inputs, outputs, numbers, epilogue):
            finishes = [[each.operation, each.operand] for each in epilogue]
            windows = {"inputs": [_window(each) for each in inputs], "outputs": [_window(each) for each in outputs]}
            return {"call": routine, **windows, "numbers": numbers, "epilogue": finishes}
        case CallBack(number, inputs, outputs):
            return {"back": number, "inputs": inputs, "outputs": outputs}
        case RunPart(parts, inputs, outputs, choice):
            programs = [program_to_json(each) for each in parts]
            return {"run": programs, "inputs": inputs, "outputs": outputs, "choice": choice}
        case RepeatPart(parts, inputs, outputs, carried, scanned, count):
            programs = [program_to_json(each) for each in parts]
            times = {"carried": carried, "scanned": scanned, "count": count}
            return {"repeat": programs, "inputs": inputs, "outputs": outputs, **times}


def _window(window: Window) -> list[Any]:
    return [window.place, window.shape, window.strides, window.offset]


def program_from_json(content: Mapping[str, Any]) -> GpuProgram:
    """Deserialize a program; malformed content is refused, or raises an error of Python's own."""
    return _Reader(frozenset(size[0] for size in content["sizes"])).program(content)


class _Reader:
    """Reads a program whose expressions are over these sizes."""

    def __init__(self, symbols: frozenset[str]):
        self.symbols = symbols

    def program(self, content: Mapping[str, Any]) -> GpuProgram:
        places = tuple(map(self.place, content["places"]))
        steps, dead = tuple(map(self.step, content["steps"])), tuple(map(_whole, content["dead"]))
        inputs, outputs, weights = _whole(content["inputs"]), _whole(content["outputs"]), tuple(content["weights"])
        sizes = tuple(Size(*each) for each in content["sizes"])
        program = GpuProgram(
            str(content["name"]),
            places,
            inputs,
            outputs,
            frozenset(_whole(content["written"])),
            sizes,
            self.number(content["arena"]),
            steps,
            dead,
            weights,
            frozenset(_whole(content["by_library"])),
        )
        _check_places(program)
        return program

    def number(self, content: Any) -> Expression:
        if type(content) is not int:
            check_expression(content, self.symbols)
        expression: Expression = content
        return expression

    def numbers(self, content: Sequence[Any]) -> Expressions:
        return tuple(map(self.number, content))

    def place(self, content: Sequence[Any]) -> Place:
        kind, number, offset, dtype, shape, strides = content
        return Place(kind, number, self.number(offset), dtype, self.numbers(shape), self.numbers(strides))

    def window(self, content: Sequence[Any]) -> Window:
        place, shape, strides, offset = content
        return Window(place, self.numbers(shape), self.numbers(strides), self.number(offset))

    def step(self, content: Mapping[str, Any]) -> Step:
        if "launch" in content:
            programs, sizes = self.number(content["programs"]), self.numbers(content["sizes"])
            return Launch(content["launch"], programs, _whole(content["places"]), sizes)
        if "call" in content:
            windows = [tuple(map(self.window, content[kind])) for kind in ("inputs", "outputs")]
            epilogue = tuple(Finish(*each) for each in content["epilogue"])
            return Call(content["call"], windows[0], windows[1], self.numbers(content["numbers"]), epilogue)
        inputs, outputs = _whole(content["inputs"]), _whole(content["outputs"])
        if "back" in content:
            return CallBack(content["back"], inputs, outputs)
        # Parts share the sizes of the program that runs them.
        if "run" in content:
            return RunPart(tuple(map(self.program, content["run"])), inputs, outputs, content["choice"])
        count = None if content["count"] is None else self.number(content["count"])
        parts = tuple(map(self.program, content["repeat"]))
        return RepeatPart(parts, inputs, outputs, content["carried"], content["scanned"], count)


def _whole(content: Sequence[Any]) -> tuple[int, ...]:
    if any(type(each) is not int for each in content):
        raise damaged("a program for a GPU is malformed", "it refers to places by other things than numbers")
    return tuple(content)


def _check_places(program: GpuProgram) -> None:
    """Check that every place that is referred to exists, and that paired lists have equal lengths."""
    named = {*program.inputs, *program.outputs, *program.written, *program.by_library}
    named |= {place for places in program.dead for place in places}
    for step in program.steps:
        match step:
            case Launch():
                named |= set(step.places)
            case Call():
                named |= {window.place for window in (*step.inputs, *step.outputs)}
            case _:
                named |= {*step.inputs, *step.outputs}
    is_known = all(place.dtype in DTYPES for place in program.places)
    is_paired = is_known and len(program.dead) == len(program.steps) and len(program.weights) == len(program.inputs)
    if not is_paired or not named <= set(range(len(program.places))):
        raise damaged("a program for a GPU is malformed", "it refers to something that it does not have")
