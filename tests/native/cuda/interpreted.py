"""Programs for GPUs on the CPU: Triton's interpreter runs the kernels."""

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import precast
from precast.native.backend import BACKEND, NativeCompiler
from precast.native.call import CompiledGraph
from precast.native.describe import Entry
from precast.native.loops.program import LoopProgram
from precast.native.targets import Code, OpenEntry
from precast.native.targets.cuda.build.code import GpuCode
from precast.native.targets.cuda.codegen.generate import generate
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.native.targets.cuda.launcher import tensor_at
from precast.native.targets.cuda.run import GpuEntry
from precast.native.targets.cuda.target import CudaTarget
from precast.options import Options
from tests.native.cuda import like_gpu
from tests.native.cuda.accesses import watch

_TYPES = {"fp64": "f64", "fp32": "f32", "fp16": "f16"}
_CPU = torch.device("cpu")
_ONE_AT_A_TIME = threading.Lock()
"""The interpreter is one for all threads."""
assert like_gpu.GARBAGE, "imported for its effect"


class InterpretingLauncher:
    """Kernels by their numbers, run program by program."""

    def __init__(self, sources: Sequence[KernelSource], folder: Path):
        self.sources, self.folder = sources, folder
        self.functions: dict[int, Any] = {}

    def launch(self, kernel: int, programs: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        source = self.sources[kernel]
        types = [_TYPES.get(each[1:], each[1:]) for each in source.signature if each.startswith("*")]
        pointers = [
            tensor_at(address, _TYPES.get(kind, kind), 1, _CPU) for address, kind in zip(addresses, types, strict=True)
        ]
        with _ONE_AT_A_TIME, watch.launch(addresses):
            self.function(kernel)[(programs,)](*pointers, *sizes)

    def function(self, kernel: int) -> Any:
        if kernel not in self.functions:
            path = self.folder / f"kernel_{id(self)}_{kernel}.py"
            path.write_text(self.sources[kernel].text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.functions[kernel] = getattr(module, self.sources[kernel].name)
        return self.functions[kernel]


class InterpretedGpu(CudaTarget):
    """The target for GPUs, for tensors on the CPU."""

    device = "cpu"
    keeps_code = False

    def __init__(self, folder: Path):
        self.folder = folder
        self.built: list[Entry] = []
        self.sources: list[KernelSource] = []

    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        programs, sources, loops = generate(entries)
        self.built += entries
        self.sources += sources
        return lambda: GpuCode("", programs=programs, sources=sources, cubins=(), loops=loops)

    def repeated(self, graph: CompiledGraph) -> None:
        return None

    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        assert isinstance(code, GpuCode)
        launcher = InterpretingLauncher(code.sources, self.folder)
        return [
            GpuEntry(each, program.fallbacks, lambda device: launcher, weights or {}, "cpu")
            for each, program in zip(code.programs, programs, strict=True)
        ]


def compiled(target: InterpretedGpu, function: Callable[..., Any], **others: Any) -> Callable[..., Any]:
    compilers = NativeCompiler(target=target), NativeCompiler(is_for_inference=True, target=target)
    backend = replace(BACKEND, fw_compiler=compilers[0], inference_compiler=compilers[1])
    options = Options(cache_directory=target.folder, verify="passes")
    return precast.compile(function, backend=backend, options=options, **others)
