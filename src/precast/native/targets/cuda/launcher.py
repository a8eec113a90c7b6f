"""Launches compiled kernels in torch's current stream; those that did not compile are interpreted."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch

from precast.artifact.dtypes import DTYPES
from precast.errors import BuildError
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.loops.canonical import FLAT_LENGTH, kernel_parameters, pattern_of
from precast.native.loops.interpreter import interpret_kernel
from precast.native.loops.program import Kernel, KernelGroup
from precast.native.targets.cuda.build.code import GpuCode
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.runtime.gpu.driver import LoadedKernel


class DriverLauncher:
    """Kernels of some code on one device; each is loaded at its first launch."""

    def __init__(self, code: GpuCode, device: torch.device):
        self.code, self.device = code, device
        self.loaded: dict[int, LoadedKernel | InterpretedKernel] = {}

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        found = self.loaded.get(kernel) or self.load(kernel)
        found.launch(programs, addresses, sizes, torch._C._cuda_getCurrentRawStream(self.device.index))

    def load(self, kernel: int) -> LoadedKernel | InterpretedKernel:
        cubin, source = self.code.cubins[kernel], self.code.sources[kernel]
        if isinstance(cubin, BuildError):
            loops = self.code.loops[kernel]
            if loops is None:
                raise cubin
            warn_of(source, cubin)
            self.loaded[kernel] = InterpretedKernel(loops, self.device)
        else:
            self.loaded[kernel] = LoadedKernel(
                cubin.code, cubin.symbol, cubin.shared, cubin.warps, len(source.signature)
            )
        return self.loaded[kernel]


def launchers(code: GpuCode) -> Callable[[torch.device], DriverLauncher]:
    """A function that returns the launcher of each device."""
    made: dict[torch.device, DriverLauncher] = {}

    def find(device: torch.device) -> DriverLauncher:
        if device not in made:
            made[device] = DriverLauncher(code, device)
        return made[device]

    return find


class InterpretedKernel:
    """Loops over whole arrays by torch's operators: what eager does, and as slow."""

    def __init__(self, kernel: Kernel | KernelGroup, device: torch.device):
        self.device = device
        # Groups of other sizes share a kernel: the ends of their loops are arguments.
        members = [kernel] if isinstance(kernel, Kernel) else [pattern_of(each).kernel for each in kernel.members]
        self.members = [(each, *kernel_parameters(each)) for each in members]

    def launch(self, programs: int, addresses: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        def memory(dtype: str, length: int, address: int) -> torch.Tensor:
            return tensor_at(address, dtype, length, self.device)

        left, numbers = iter(addresses), iter(sizes)
        with torch.device(self.device):
            for kernel, buffers, names in self.members:
                places = dict(zip(buffers, islice(left, len(buffers)), strict=True))
                known = dict(zip(names, islice(numbers, len(names)), strict=True))
                interpret_kernel(kernel, {FLAT_LENGTH: _UNKNOWN_LENGTH, **known}, places, memory)


def tensor_at(address: int, dtype: str, length: int, device: torch.device) -> torch.Tensor:
    """Wrap memory that is owned elsewhere as a tensor."""
    if not address or not length:
        return torch.empty(length, dtype=TORCH_DTYPES[dtype], device=device)
    size = DTYPES[dtype].item_size
    if device.type == "cpu":
        window = (ctypes.c_char * (length * size)).from_address(address)
        return torch.frombuffer(window, dtype=TORCH_DTYPES[dtype])
    return torch.as_tensor(_Memory(address, length * size), device=device).view(TORCH_DTYPES[dtype])


class _Memory:
    """Bytes on a GPU, with the CUDA array interface."""

    def __init__(self, address: int, length: int):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (length,), "typestr": "|u1", "strides": None, "version": 3,
        }  # fmt: skip


_UNKNOWN_LENGTH = 2**40
"""Elements beyond those that are accessed do no harm."""
_REPRO = """

# Compile this kernel by itself: python {path}
if __name__ == "__main__":
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict(zip({name}.arg_names, {signature!r}))
    pointers = [place for place, kind in enumerate(types.values()) if kind.startswith("*")]
    aligned = {{(place,): [["tt.divisibility", 16]] for place in pointers}}
    target = GPUTarget("cuda", 90, 32)
    triton.compile(ASTSource({name}, types, {{}}, aligned), target=target, options={{"num_warps": {warps}}})
"""
_TOLD: set[str] = set()


def warn_of(source: KernelSource, error: BuildError) -> None:
    """Warn once that a kernel did not compile, with the path of a script that reproduces it."""
    if source.text in _TOLD:
        return
    _TOLD.add(source.text)
    name = hashlib.sha256(source.text.encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"precast-kernel-{name}.py"
    script = _REPRO.format(path=path, name=source.name, signature=source.signature, warps=source.warps)
    path.write_text(source.text + script)
    message = f"{error.what}, which runs by torch's operators instead. {error.why}\nThis script shows it: {path}"
    warnings.warn(message, stacklevel=2)
