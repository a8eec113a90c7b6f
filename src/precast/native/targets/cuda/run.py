"""Runs programs for a GPU over torch's tensors: launches kernels, calls libraries and operators of torch in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from precast.artifact.dtypes import DTYPES
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.fallback import run_step
from precast.native.loops.index import Index, evaluate
from precast.native.loops.program import FallbackStep
from precast.native.targets.cuda.launches import (
    Call,
    CallBack,
    GpuProgram,
    Launch,
    Place,
    RepeatPart,
    RunPart,
    Step,
    Window,
)
from precast.native.targets.cuda.routines import CONVOLUTIONS, convolve, multiply

Numbers = tuple[int, ...]
MOST_SIZES = 64
"""For so many different sizes, an entry remembers what follows from them."""
ALIGNMENT = 16
"""Kernels are compiled for memory that begins at a multiple of so many bytes."""


class Launcher(Protocol):
    """Launches the kernels of some code, by their numbers, on one device."""

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Put a launch into the current stream."""


@dataclass(frozen=True)
class _Layout:
    """A place for certain sizes; `offset` counts bytes of the arena."""

    kind: str
    offset: int
    dtype: torch.dtype
    shape: Numbers
    strides: Numbers


@dataclass(frozen=True)
class _BoundWindow:
    place: int
    shape: Numbers
    strides: Numbers
    offset: int


@dataclass(frozen=True)
class _BoundLaunch:
    kernel: int
    programs: int
    places: tuple[int, ...]
    sizes: Numbers


@dataclass(frozen=True)
class _BoundCall:
    call: Call
    inputs: tuple[_BoundWindow, ...]
    outputs: tuple[_BoundWindow, ...]
    numbers: Numbers


class _Bound:
    """A program for certain sizes: every expression is a number."""

    def __init__(self, program: GpuProgram, sizes: Mapping[str, int]):
        self.sizes, self.parts = dict(sizes), dict[GpuProgram, _Bound]()
        self.layouts = tuple(map(self._layout, program.places))
        self.arena_size = self.number(program.arena_size)
        self.steps = tuple(map(self._step, program.steps))

    def number(self, index: Index) -> int:
        return index.constant if index.constant is not None else evaluate(index, lambda atom: self.sizes[atom.text])

    def _numbers(self, indices: Sequence[Index]) -> Numbers:
        return tuple(map(self.number, indices))

    def _layout(self, place: Place) -> _Layout:
        shape, strides = self._numbers(place.shape), self._numbers(place.strides)
        return _Layout(place.kind, self.number(place.offset), TORCH_DTYPES[place.dtype], shape, strides)

    def part(self, program: GpuProgram) -> _Bound:
        """A part for the same sizes."""
        if program not in self.parts:
            self.parts[program] = _Bound(program, self.sizes)
        return self.parts[program]

    def _step(self, step: Step) -> _BoundLaunch | _BoundCall | CallBack | RunPart | RepeatPart:
        match step:
            case Launch(kernel, programs, places, sizes):
                return _BoundLaunch(kernel, self.number(programs), places, self._numbers(sizes))
            case Call(_, inputs, outputs, numbers):
                windows = tuple(map(self._window, inputs)), tuple(map(self._window, outputs))
                return _BoundCall(step, *windows, self._numbers(numbers))
        return step

    def _window(self, window: Window) -> _BoundWindow:
        shape, strides = self._numbers(window.shape), self._numbers(window.strides)
        return _BoundWindow(window.place, shape, strides, self.number(window.offset))


class GpuEntry:
    """One program, ready to be called over torch's tensors on one kind of device."""

    def __init__(
        self,
        program: GpuProgram,
        fallbacks: Sequence[FallbackStep],
        launcher: Callable[[torch.device], Launcher],
        weights: Mapping[str, torch.Tensor],
        device: str,
    ):
        self.program, self.fallbacks, self._launcher, self._device = program, fallbacks, launcher, device
        self._weights = [None if name is None else weights[name] for name in program.weights]
        self._bounds: dict[Numbers, _Bound] = {}

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        """The program's outputs, but for those that it writes into inputs."""
        given = iter(tensors)
        inputs = [next(given) if weight is None else weight for weight in self._weights]
        device = self._device_of(inputs)
        bound = self._bound(inputs)
        with torch.no_grad(), self._on(device):
            return _Call(self, self.program, bound, device, inputs).run()

    @property
    def looks_at_data(self) -> bool:
        """Whether what is launched depends on what tensors hold."""
        return any(isinstance(step, RunPart | RepeatPart) for step in self.program.steps)

    def _on(self, device: torch.device) -> Any:
        return torch.cuda.device(device) if device.type == "cuda" else torch.device(device)

    def launcher(self, device: torch.device) -> Launcher:
        return self._launcher(device)

    def _device_of(self, inputs: Sequence[Any]) -> torch.device:
        devices = (each.device for each in inputs if isinstance(each, torch.Tensor))
        found = next((each for each in devices if each.type == self._device), None)
        if found is not None:
            return found
        return torch.device("cuda", torch.cuda.current_device()) if self._device == "cuda" else torch.device("cpu")

    def _bound(self, inputs: Sequence[Any]) -> _Bound:
        sizes = {each.symbol: _size(each.dimension, inputs[each.position], each.factor, each.offset)
                 for each in self.program.sizes}  # fmt: skip
        key = tuple(sizes.values())
        found = self._bounds.get(key)
        if found is None:
            while len(self._bounds) >= MOST_SIZES:
                del self._bounds[next(iter(self._bounds))]
            found = self._bounds[key] = _Bound(self.program, sizes)
        return found


class _Call:
    """One call: the memory of every place."""

    def __init__(
        self, entry: GpuEntry, program: GpuProgram, bound: _Bound, device: torch.device, inputs: Sequence[Any]
    ):
        self.entry, self.program, self.bound, self.device = entry, program, bound, device
        self.tensors: dict[int, torch.Tensor] = {}
        self.copied_back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.arena = torch.empty(bound.arena_size, dtype=torch.uint8, device=device)
        self.base = self.arena.data_ptr()
        for place, value in zip(program.inputs, inputs, strict=True):
            self.tensors[place] = self.input(place, value)
        for place in program.outputs:
            if place not in program.by_torch:
                self.tensors[place] = self.empty(place)

    def run(self) -> tuple[torch.Tensor, ...]:
        program, launcher = self.program, self.launcher
        for step, dead in zip(self.bound.steps, program.dead, strict=True):
            match step:
                case _BoundLaunch(kernel, programs, places, sizes):
                    if programs:
                        launcher.launch(kernel, programs, [self.address(place) for place in places], sizes)
                case _BoundCall():
                    self.call(step)
                case CallBack():
                    self.call_back(step)
                case RunPart():
                    self.run_part(step)
                case RepeatPart():
                    self.repeat(step)
            for place in dead:
                del self.tensors[place]
        for source, target in self.copied_back:
            target.copy_(source)
        return tuple(self.tensors[place] for place in program.outputs)

    @cached_property
    def launcher(self) -> Launcher:
        return self.entry.launcher(self.device)

    def input(self, place: int, value: Any) -> torch.Tensor:
        """An input as kernels expect it: on the device, with the strides it was traced with, and aligned."""
        layout = self.bound.layouts[place]
        tensor = torch.as_tensor(value)
        if tensor.device != self.device:
            tensor = tensor.to(self.device, non_blocking=True)
        if _is_laid_out(tensor, layout) and tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        copy = self.empty(place)
        _distinct(copy, layout).copy_(_distinct(tensor, layout))
        if place in self.program.written:
            self.copied_back.append((copy, tensor))
        return copy

    def address(self, place: int) -> int:
        layout = self.bound.layouts[place]
        return self.base + layout.offset if layout.kind == "arena" else self.tensors[place].data_ptr()

    def tensor(self, place: int) -> torch.Tensor:
        layout = self.bound.layouts[place]
        return self.in_arena(layout) if layout.kind == "arena" else self.tensors[place]

    def in_arena(self, layout: _Layout) -> torch.Tensor:
        size = DTYPES_SIZE[layout.dtype]
        return self.arena.view(layout.dtype if self.arena.numel() % size == 0 else torch.uint8).as_strided(
            layout.shape, layout.strides, layout.offset // size
        )

    def window(self, window: _BoundWindow) -> torch.Tensor:
        whole = self.tensor(window.place)
        return whole.as_strided(window.shape, window.strides, whole.storage_offset() + window.offset)

    def call(self, step: _BoundCall) -> None:
        inputs, (output,) = [*map(self.window, step.inputs)], step.outputs
        if step.call.routine in CONVOLUTIONS:
            result = convolve(step.call.routine, inputs, output.shape, output.strides, step.numbers)
            self.take(output.place, result)
        else:
            multiply(step.call, inputs, self.window(output))

    def call_back(self, step: CallBack) -> None:
        inputs = [self.tensor(place) for place in step.inputs]
        results = run_step(self.entry.fallbacks[step.number], inputs, self.bound.sizes)
        known = {each.untyped_storage().data_ptr() for each in inputs}
        for place, result in zip(step.outputs, results, strict=True):
            # What shares memory with an input would change with it.
            self.take(place, result.clone() if result.untyped_storage().data_ptr() in known else result)

    def take(self, place: int, result: torch.Tensor) -> None:
        """Let a place hold what torch computed: as it is, where torch chooses the memory and laid it out as wanted."""
        layout, is_free = self.bound.layouts[place], place in self.program.by_torch
        if is_free and _is_laid_out(result, layout) and result.data_ptr() % ALIGNMENT == 0:
            self.tensors[place] = result
            return
        if is_free:
            self.tensors[place] = self.empty(place)
        self.tensor(place).copy_(result)

    def empty(self, place: int) -> torch.Tensor:
        layout = self.bound.layouts[place]
        return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=self.device)

    def run_part(self, step: RunPart) -> None:
        number = 0 if step.choice is None else int(self.tensor(step.choice).item())
        results = self.part(step.parts[number], [self.tensor(place) for place in step.inputs])
        for place, result in zip(step.outputs, results, strict=True):
            self.tensor(place).copy_(result)

    def repeat(self, step: RepeatPart) -> None:
        inputs = [self.tensor(place) for place in step.inputs]
        outputs = [self.tensor(place) for place in step.outputs]
        carried, scanned, others = (
            inputs[: step.carried],
            inputs[step.carried : step.carried + step.scanned],
            inputs[step.carried + step.scanned :],
        )
        times = None if step.count is None else self.bound.number(step.count)
        number = 0
        while number != times if times is not None else self.part(step.parts[1], [*carried, *others])[0].item():
            results = self.part(step.parts[0], [*carried, *(each[number] for each in scanned), *others])
            for output, result in zip(outputs[step.carried :], results[step.carried :], strict=True):
                output[number].copy_(result)
            carried, number = list(results[: step.carried]), number + 1
        for output, last in zip(outputs, carried, strict=False):
            output.copy_(last)

    def part(self, program: GpuProgram, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return _Call(self.entry, program, self.bound.part(program), self.device, inputs).run()


DTYPES_SIZE = {TORCH_DTYPES[name]: each.item_size for name, each in DTYPES.items()}


def _is_laid_out(tensor: torch.Tensor, layout: _Layout) -> bool:
    return tensor.dtype == layout.dtype and all(
        size <= 1 or mine == wanted
        for size, mine, wanted in zip(tensor.shape, tensor.stride(), layout.strides, strict=True)
    )


def _distinct(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """The part that has each element once, where the layout repeats them."""
    for dimension, (size, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        tensor = tensor.narrow(dimension, 0, 1) if stride == 0 and size > 1 else tensor
    return tensor


def _size(dimension: int | None, value: Any, factor: int, offset: int) -> int:
    number = int(value) if dimension is None else value.shape[dimension]
    return (number - offset) // factor
