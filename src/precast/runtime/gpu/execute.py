"""Runs a GPU program: launches kernels and calls libraries in order, over memory of an underlying library.

That library is a `Device`: torch's operators and allocator in process, the CUDA driver and NVIDIA's libraries in
programs without torch. Both run the same programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from precast.artifact.gpu_programs import Call, CallBack, GpuProgram, RunPart
from precast.runtime.gpu.bound import BoundCall, BoundLaunch, BoundProgram, BoundRepeat, BoundWindow, Layout, Numbers

ALIGNMENT = 16
"""The alignment, in bytes, that kernels are compiled for."""
CONVOLUTIONS = frozenset({"convolution", "convolution_backward_data", "convolution_backward_weights"})
"""Routines whose results a library allocates."""

Array = TypeVar("Array")


class Device(Protocol[Array]):
    """Arrays on one device, and operations on them; `Array` is the underlying library's type."""

    def array(self, value: Any, layout: Layout) -> Array:
        """An argument of the program, on the device; in this layout, if it has to be copied there anyway."""

    def fits(self, array: Array, layout: Layout) -> bool:
        """Whether an array has this type and these strides, and is aligned for kernels."""

    def empty(self, layout: Layout) -> Array: ...

    def arena(self, size: int) -> Array:
        """Allocate `size` bytes."""

    def in_arena(self, arena: Array, layout: Layout) -> Array: ...

    def address(self, array: Array) -> int: ...

    def window(self, array: Array, window: BoundWindow) -> Array:
        """A strided view of an array."""

    def row(self, array: Array, number: int) -> Array:
        """``array[number]``."""

    def copy(self, target: Array, source: Array) -> None: ...

    def number(self, array: Array) -> int:
        """The only element of an array, once it is computed."""

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None: ...

    def multiply(self, call: Call, inputs: Sequence[Array], output: Array) -> None: ...

    def convolve(self, routine: str, inputs: Sequence[Array], layout: Layout, numbers: Numbers) -> Array:
        """The result of a convolution, in the wanted layout if possible."""

    def call_back(self, number: int, inputs: Sequence[Array], sizes: dict[str, int]) -> Sequence[Array]:
        """The results of a torch operator, in memory of their own."""


class ProgramCall(Generic[Array]):
    """One call: the memory of every place."""

    def __init__(self, device: Device[Array], bound: BoundProgram, inputs: Sequence[Any]):
        self.device, self.bound, self.program = device, bound, bound.program
        self.arrays: dict[int, Array] = {}
        self.copied_back: list[tuple[Array, Array]] = []
        self.arena = device.arena(bound.arena_size)
        self.base = device.address(self.arena)
        for place, value in zip(self.program.inputs, inputs, strict=True):
            self.arrays[place] = self.input(place, value)
        for place in self.program.outputs:
            if place not in self.program.by_library:
                self.arrays[place] = device.empty(bound.layouts[place])

    def run(self) -> tuple[Array, ...]:
        """Run the program; returns all outputs, in order."""
        for step, dead in zip(self.bound.steps, self.program.dead, strict=True):
            match step:
                case BoundLaunch(kernel, programs, places, sizes):
                    if programs:
                        self.device.launch(kernel, programs, [self.address(place) for place in places], sizes)
                case BoundCall():
                    self.call(step)
                case CallBack():
                    inputs = [self.array(place) for place in step.inputs]
                    self.take_all(step.outputs, self.device.call_back(step.number, inputs, self.bound.sizes))
                case RunPart():
                    self.run_part(step)
                case BoundRepeat():
                    self.repeat(step)
            for place in dead:
                del self.arrays[place]
        for source, target in self.copied_back:
            self.device.copy(target, source)
        return tuple(self.arrays[place] for place in self.program.outputs)

    def input(self, place: int, value: Any) -> Array:
        """An input as kernels expect it: on the device, with its traced strides, and aligned."""
        layout = self.bound.layouts[place]
        array = self.device.array(value, layout)
        if self.device.fits(array, layout):
            return array
        copy = self.device.empty(layout)
        self.device.copy(copy, array)
        if place in self.program.written:
            self.copied_back.append((copy, array))
        return copy

    def address(self, place: int) -> int:
        layout = self.bound.layouts[place]
        return self.base + layout.offset if layout.kind == "arena" else self.device.address(self.arrays[place])

    def array(self, place: int) -> Array:
        layout = self.bound.layouts[place]
        return self.device.in_arena(self.arena, layout) if layout.kind == "arena" else self.arrays[place]

    def window(self, window: BoundWindow) -> Array:
        return self.device.window(self.array(window.place), window)

    def call(self, step: BoundCall) -> None:
        inputs, (output,) = [*map(self.window, step.inputs)], step.outputs
        if step.call.routine in CONVOLUTIONS:
            wanted = Layout("library", 0, self.bound.layouts[output.place].dtype, output.shape, output.strides)
            self.take_all([output.place], [self.device.convolve(step.call.routine, inputs, wanted, step.numbers)])
        else:
            self.device.multiply(step.call, inputs, self.window(output))

    def take_all(self, places: Sequence[int], results: Sequence[Array]) -> None:
        """Store a library's results in places: without a copy, if it allocates them in the wanted layout."""
        for place, result in zip(places, results, strict=True):
            layout, is_free = self.bound.layouts[place], place in self.program.by_library
            if is_free and self.device.fits(result, layout):
                self.arrays[place] = result
                continue
            if is_free:
                self.arrays[place] = self.device.empty(layout)
            self.device.copy(self.array(place), result)

    def run_part(self, step: RunPart) -> None:
        number = 0 if step.choice is None else self.device.number(self.array(step.choice))
        results = self.part(step.parts[int(number != 0)], [self.array(place) for place in step.inputs])
        for place, result in zip(step.outputs, results, strict=True):
            self.device.copy(self.array(place), result)

    def repeat(self, bound: BoundRepeat) -> None:
        step, device = bound.step, self.device
        inputs = [self.array(place) for place in step.inputs]
        outputs = [self.array(place) for place in step.outputs]
        end = step.carried + step.scanned
        carried, scanned, others = inputs[: step.carried], inputs[step.carried : end], inputs[end:]
        number = 0
        while (
            number != bound.count
            if bound.count is not None
            else device.number(self.part(step.parts[1], [*carried, *others])[0])
        ):
            rows = [device.row(each, number) for each in scanned]
            results = self.part(step.parts[0], [*carried, *rows, *others])
            for output, result in zip(outputs[step.carried :], results[step.carried :], strict=True):
                device.copy(device.row(output, number), result)
            carried, number = list(results[: step.carried]), number + 1
        for output, last in zip(outputs, carried, strict=False):
            device.copy(output, last)

    def part(self, program: GpuProgram, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return ProgramCall(self.device, self.bound.part(program), inputs).run()
