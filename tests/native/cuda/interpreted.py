"""Programs for GPUs on the CPU: Triton's interpreter runs the kernels."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter as triton_interpreter

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

_TYPES = {"fp64": "f64", "fp32": "f32", "fp16": "f16"}
_CPU = torch.device("cpu")


def _by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of NVIDIA's math library, which the interpreter does not have, on its blocks."""

    def compute(*arguments: Any) -> Any:
        blocks = [each if isinstance(each, tl.tensor) else tl.to_tensor(each) for each in arguments]
        arrays = np.broadcast_arrays(*(each.handle.data for each in blocks))
        result = function(*(torch.from_numpy(np.ascontiguousarray(each)) for each in arrays)).numpy()
        kind = blocks[0].type
        for each in blocks:
            kind = each.type if each.handle.data.size == result.size else kind
        result = result.reshape(arrays[0].shape)
        return tl.tensor(triton_interpreter.TensorHandle(result, blocks[0].handle.dtype), kind)

    return compute


_LIBRARY = {
    **{name: getattr(torch, name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc",
        "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "lgamma", "log", "log10", "log1p", "log2",
        "nextafter", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    )},
    "rint": torch.round, "erfcx": torch.special.erfcx, "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1, "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1, "normcdfinv": torch.special.ndtri,
}  # fmt: skip
for _name, _function in _LIBRARY.items():
    setattr(libdevice, _name, _by_torch(_function))

# By whole arrays: the interpreter goes by single elements where it does not know a function.
_REDUCTIONS = {"maximum": np.max, "minimum": np.min, "multiply": np.prod}
_slow_reduce = triton_interpreter.ReduceOps.generic_reduce


def _reduce(self: Any, input: Any) -> Any:
    function = _REDUCTIONS.get(self.combine_fn.fn.__name__)
    if function is None:
        return _slow_reduce(self, input)
    block = input[0] if isinstance(input, tuple) else input
    data = function(block.handle.data, axis=self.axis, keepdims=self.keep_dims)
    return self.to_tensor(data.astype(block.handle.data.dtype), block.dtype)


triton_interpreter.ReduceOps.generic_reduce = _reduce

_builder = triton_interpreter.interpreter_builder
_builder.options = replaced(_builder.options, debug=True, sanitize_overflow=False)
_patch_tensor = triton_interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    # Numbers are arrays of one element there, which NumPy 2.4 makes no number of.
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


triton_interpreter._patch_lang_tensor = _patch_lang_tensor


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
    backend = replaced(BACKEND, fw_compiler=compilers[0], inference_compiler=compilers[1])
    options = Options(cache_directory=target.folder, verify="passes")
    return precast.compile(function, backend=backend, options=options, **others)
