"""A program bound to certain sizes: every formula is evaluated to a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precast.artifact.expressions import whole_number
from precast.artifact.gpu_programs import (
    Call,
    CallBack,
    Expression,
    GpuProgram,
    Launch,
    Place,
    RepeatPart,
    RunPart,
    Step,
    Window,
)

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A place at certain sizes; `offset` counts bytes of the arena."""

    kind: str
    offset: int
    dtype: str
    shape: Numbers
    strides: Numbers

    @property
    def length(self) -> int:
        """Elements from the first to the last."""
        return span(self.shape, self.strides)


@dataclass(frozen=True)
class BoundWindow:
    """A strided view of a place; the offset counts elements."""

    place: int
    shape: Numbers
    strides: Numbers
    offset: int


@dataclass(frozen=True)
class BoundLaunch:
    kernel: int
    programs: int
    places: tuple[int, ...]
    sizes: Numbers


@dataclass(frozen=True)
class BoundCall:
    call: Call
    inputs: tuple[BoundWindow, ...]
    outputs: tuple[BoundWindow, ...]
    numbers: Numbers


@dataclass(frozen=True)
class BoundRepeat:
    step: RepeatPart
    count: int | None


BoundStep = BoundLaunch | BoundCall | CallBack | RunPart | BoundRepeat


class BoundProgram:
    """A program with the values of its formulas."""

    def __init__(self, program: GpuProgram, sizes: Mapping[str, int]):
        self.program, self.sizes = program, dict(sizes)
        self._parts: dict[int, BoundProgram] = {}
        self.layouts = tuple(map(self._layout, program.places))
        self.arena_size = self._number(program.arena_size)
        self.steps = tuple(map(self._step, program.steps))

    def part(self, program: GpuProgram) -> BoundProgram:
        """A part at the same sizes; it stays alive with the program that it belongs to."""
        if id(program) not in self._parts:
            self._parts[id(program)] = BoundProgram(program, self.sizes)
        return self._parts[id(program)]

    def _number(self, expression: Expression) -> int:
        return expression if isinstance(expression, int) else whole_number(expression, self.sizes)

    def _numbers(self, expressions: Sequence[Expression]) -> Numbers:
        return tuple(map(self._number, expressions))

    def _layout(self, place: Place) -> Layout:
        shape, strides = self._numbers(place.shape), self._numbers(place.strides)
        return Layout(place.kind, self._number(place.offset), place.dtype, shape, strides)

    def _window(self, window: Window) -> BoundWindow:
        shape, strides = self._numbers(window.shape), self._numbers(window.strides)
        return BoundWindow(window.place, shape, strides, self._number(window.offset))

    def _step(self, step: Step) -> BoundStep:
        match step:
            case Launch(kernel, programs, places, sizes):
                return BoundLaunch(kernel, self._number(programs), places, self._numbers(sizes))
            case Call(_, inputs, outputs, numbers):
                windows = tuple(map(self._window, inputs)), tuple(map(self._window, outputs))
                return BoundCall(step, *windows, self._numbers(numbers))
            case RepeatPart():
                return BoundRepeat(step, None if step.count is None else self._number(step.count))
        return step


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
