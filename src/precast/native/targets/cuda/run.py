"""Runs GPU programs over torch tensors, with torch's allocator, operators and current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from precast.artifact.gpu_programs import Call, GpuProgram, RepeatPart, RunPart
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.fallback import run_step
from precast.native.loops.program import FallbackStep
from precast.native.targets.cuda.routines import convolve, multiply
from precast.runtime.gpu.bound import BoundProgram, BoundWindow, Layout, Numbers
from precast.runtime.gpu.execute import ALIGNMENT, ProgramCall

MOST_SIZES = 64
"""The number of different sizes for which an entry memoizes what is computed from them."""


class Launcher(Protocol):
    """Launches the kernels of some code, by number, on one device."""

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Enqueue a launch in the current stream."""


class GpuEntry:
    """One program, ready to be called with torch tensors on one kind of device."""

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
        self._bounds: dict[Numbers, BoundProgram] = {}

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        """The program's outputs, except those written into inputs."""
        given = iter(tensors)
        inputs = [next(given) if weight is None else weight for weight in self._weights]
        device = self._device_of(inputs)
        bound = self._bound(inputs)
        with torch.no_grad(), self._on(device):
            return ProgramCall(TorchDevice(device, self._launcher, self.fallbacks), bound, inputs).run()

    @property
    def looks_at_data(self) -> bool:
        """Whether the launches depend on the values of tensors."""
        return any(isinstance(step, RunPart | RepeatPart) for step in self.program.steps)

    def _on(self, device: torch.device) -> Any:
        return torch.cuda.device(device) if device.type == "cuda" else torch.device(device)

    def _device_of(self, inputs: Sequence[Any]) -> torch.device:
        devices = (each.device for each in inputs if isinstance(each, torch.Tensor))
        found = next((each for each in devices if each.type == self._device), None)
        if found is not None:
            return found
        return torch.device("cuda", torch.cuda.current_device()) if self._device == "cuda" else torch.device("cpu")

    def _bound(self, inputs: Sequence[Any]) -> BoundProgram:
        sizes = {each.symbol: _size(each.dimension, inputs[each.position], each.factor, each.offset)
                 for each in self.program.sizes}  # fmt: skip
        key = tuple(sizes.values())
        found = self._bounds.get(key)
        if found is None:
            while len(self._bounds) >= MOST_SIZES:
                self._bounds.pop(next(iter(self._bounds)), None)
            found = self._bounds[key] = BoundProgram(self.program, sizes)
        return found


class TorchDevice:
    """One device for one call, through torch; its launcher is created at the first launch."""

    def __init__(
        self,
        device: torch.device,
        launcher: Callable[[torch.device], Launcher],
        fallbacks: Sequence[FallbackStep],
    ):
        self.device, self.fallbacks, self._find_launcher = device, fallbacks, launcher
        self._launcher: Launcher | None = None

    def array(self, value: Any, layout: Layout) -> torch.Tensor:
        tensor = torch.as_tensor(value)
        return tensor if tensor.device == self.device else unpinned(tensor).to(self.device, non_blocking=True)

    def fits(self, array: torch.Tensor, layout: Layout) -> bool:
        return _is_laid_out(array, layout) and array.data_ptr() % ALIGNMENT == 0

    def empty(self, layout: Layout) -> torch.Tensor:
        dtype = TORCH_DTYPES[layout.dtype]
        return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=self.device)

    def arena(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def in_arena(self, arena: torch.Tensor, layout: Layout) -> torch.Tensor:
        dtype = TORCH_DTYPES[layout.dtype]
        size = dtype.itemsize
        return arena.view(dtype if arena.numel() % size == 0 else torch.uint8).as_strided(
            layout.shape, layout.strides, layout.offset // size
        )

    def address(self, array: torch.Tensor) -> int:
        return array.data_ptr()

    def window(self, array: torch.Tensor, window: BoundWindow) -> torch.Tensor:
        return array.as_strided(window.shape, window.strides, array.storage_offset() + window.offset)

    def row(self, array: torch.Tensor, number: int) -> torch.Tensor:
        return array[number]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target, source = distinct(target, source)
        target.copy_(source)

    def number(self, array: torch.Tensor) -> int:
        return int(array.item())

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        if self._launcher is None:
            self._launcher = self._find_launcher(self.device)
        self._launcher.launch(kernel, programs, addresses, sizes)

    def multiply(self, call: Call, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
        multiply(call, inputs, output)

    def convolve(self, routine: str, inputs: Sequence[torch.Tensor], layout: Layout, numbers: Numbers) -> torch.Tensor:
        return convolve(routine, inputs, layout.shape, layout.strides, numbers)

    def call_back(self, number: int, inputs: Sequence[torch.Tensor], sizes: dict[str, int]) -> Sequence[torch.Tensor]:
        known = {each.untyped_storage().data_ptr() for each in inputs}
        results = run_step(self.fallbacks[number], inputs, sizes)
        # A result that shares memory with an input would change with it.
        return [each.clone() if each.untyped_storage().data_ptr() in known else each for each in results]


def distinct(target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of two tensors that have each element once where the target's layout broadcasts them."""
    for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if stride == 0 and size > 1:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    return target, source


def unpinned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose copy to a GPU need not be waited for: pinned memory is read only later, and may have changed."""
    return tensor.clone() if tensor.is_pinned() else tensor


def _is_laid_out(tensor: torch.Tensor, layout: Layout) -> bool:
    return tensor.dtype == TORCH_DTYPES[layout.dtype] and all(
        size <= 1 or mine == wanted
        for size, mine, wanted in zip(tensor.shape, tensor.stride(), layout.strides, strict=True)
    )


def _size(dimension: int | None, value: Any, factor: int, offset: int) -> int:
    number = int(value) if dimension is None else value.shape[dimension]
    return (number - offset) // factor
