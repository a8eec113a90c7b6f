"""AOT autograd with settings that make most programs fast: fused kernels, and recomputation of cheap ops.

On CPUs, that is the native backend with its decompositions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from precast.autograd import aot_function, aot_module
from precast.backend import Backend, CompiledFunction, Compiler, as_compiler, get_backend, list_backends
from precast.compilers.torchscript import simple_ts_compile
from precast.native.backend import NativeCompiler
from precast.options import Options, as_options
from precast.partition import min_cut_rematerialization_partition

# Device → backends that can compile for it, fastest first.
_FASTEST_FIRST = {"cpu": ("native", "ts"), "cuda": ("triton", "ts")}


def nnc_jit(f: Callable[..., object]) -> Callable[..., object]:
    """Compile ``f`` and its backward through TorchScript: ``aot_function(f, simple_ts_compile)``."""
    return aot_function(f, simple_ts_compile)


def memory_efficient_fusion(
    fn: Callable[..., object] | torch.nn.Module, **overrides: Any
) -> Callable[..., object] | torch.nn.Module:
    """Compile a function or module with the fastest backend for its device, and save little for the backward.

    ``overrides`` are arguments of ``aot_function``; they take precedence over the defaults chosen here
    (``fw_compiler``, ``partition_fn``, ``decompositions``).
    """
    choices: dict[str, Any] = {
        "fw_compiler": FastestCompiler(),
        "inference_compiler": FastestCompiler(is_for_inference=True),
        "partition_fn": fastest_partition,
        "decompositions": get_backend("native").decompositions,
        **overrides,
    }
    return aot_module(fn, **choices) if isinstance(fn, torch.nn.Module) else aot_function(fn, **choices)


def fastest_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[Any], **others: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Partition with the function of the backend that will compile the halves."""
    backend = _fastest_backend([value for part in joint_inputs for value in part])
    partition = backend.partition_fn or min_cut_rematerialization_partition
    return partition(joint_module, joint_inputs, **others)


def _fastest_backend(inputs: Sequence[object]) -> Backend:
    """The fastest available backend for the inputs' device."""
    devices = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    candidates = _FASTEST_FIRST.get(devices.pop(), ("ts",)) if len(devices) == 1 else ("ts",)
    known = list_backends()
    return get_backend(next(name for name in candidates if name in known))


@dataclass(frozen=True)
class FastestCompiler(Compiler):
    """Compiles with the fastest available backend for the inputs' device; caches results of the native backend."""

    is_for_inference: bool = False
    options: Options | None = None

    @property
    def cache_key(self) -> str:  # type: ignore[override]  # an attribute for those who assign it
        """The native backend's: results of other backends are not cached."""
        return f"{self._native.cache_key} {list_backends()}"

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFunction:
        return self.start(graph_module, example_inputs)()

    def start(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[], CompiledFunction]:
        return self._fastest(example_inputs).start(graph_module, example_inputs)

    def get_ready(self, state: Sequence[torch.Tensor]) -> None:
        self._fastest(state).get_ready(state)

    def with_options(self, options: Options) -> "FastestCompiler":
        return replace(self, options=options)

    def random_source(self) -> str:
        return self._native.random_source()

    def drawing_as_torch(self) -> "FastestCompiler":
        return replace(self, options=self._native.drawing_as_torch().options)

    def store(self, compiled: Any) -> bytes | None:
        return self._native.store(compiled) if _is_native(compiled) else None

    def restore(self, data: bytes, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFunction:
        return self._native.restore(data, graph_module, example_inputs)

    def store_alone(self, compiled: Any) -> bytes | None:
        return self._native.store_alone(compiled) if _is_native(compiled) else None

    def restore_alone(self, data: bytes) -> CompiledFunction:
        return self._native.restore_alone(data)

    def _fastest(self, inputs: Sequence[object]) -> Compiler:
        backend = _fastest_backend(inputs)
        for_inference = backend.inference_compiler if self.is_for_inference else None
        compiler = backend.fw_compiler if for_inference is None else for_inference
        return as_compiler(compiler).with_options(as_options(self.options))

    @property
    def _native(self) -> NativeCompiler:
        return NativeCompiler(self.options, self.is_for_inference)


def _is_native(compiled: object) -> bool:
    return hasattr(compiled, "stored")
