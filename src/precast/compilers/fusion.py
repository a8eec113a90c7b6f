"""AOT autograd with the choices that make most programs fast: fused kernels, and recomputing what is cheap.

On CPUs that is the native backend, whose operators are taken apart as it wants them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.autograd import aot_function, aot_module
from precast.backend import Backend, get_backend, list_backends
from precast.compilers.torchscript import simple_ts_compile
from precast.native.backend import NativeCompiler
from precast.partition import min_cut_rematerialization_partition

# Device → backends that can compile for it, fastest first.
_FASTEST_FIRST = {"cpu": ("native", "ts"), "cuda": ("triton", "ts")}


def nnc_jit(f: Callable[..., object]) -> Callable[..., object]:
    """Compile ``f`` and its backward through TorchScript: ``aot_function(f, simple_ts_compile)``."""
    return aot_function(f, simple_ts_compile)


def memory_efficient_fusion(
    fn: Callable[..., object] | torch.nn.Module, **overrides: Any
) -> Callable[..., object] | torch.nn.Module:
    """Compile a function or module with the fastest backend of its device, saving little for the backward.

    ``overrides`` are arguments of ``aot_function``: they replace what is chosen here (``fw_compiler``,
    ``partition_fn``, ``decompositions``) or add to it.
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
    """Split as the backend that will compile the halves wants it."""
    backend = _fastest_backend([value for part in joint_inputs for value in part])
    partition = backend.partition_fn or min_cut_rematerialization_partition
    return partition(joint_module, joint_inputs, **others)


def _fastest_backend(inputs: Sequence[object]) -> Backend:
    """The fastest backend there is for the device that the inputs are on."""
    devices = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    candidates = _FASTEST_FIRST.get(devices.pop(), ("ts",)) if len(devices) == 1 else ("ts",)
    known = list_backends()
    return get_backend(next(name for name in candidates if name in known))


@dataclass(frozen=True)
class FastestCompiler:
    """Compiles with the fastest backend there is for the device that the inputs are on; keeps what that can keep."""

    is_for_inference: bool = False

    @property
    def cache_key(self) -> str:
        """The native backend's: what other backends make is not kept."""
        return f"{self._native.cache_key} {list_backends()}"

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        backend = _fastest_backend(example_inputs)
        for_inference = backend.inference_compiler if self.is_for_inference else None
        return (for_inference or backend.fw_compiler)(graph_module, example_inputs)

    def store(self, compiled: Any) -> bytes | None:
        return self._native.store(compiled) if _is_native(compiled) else None

    def restore(self, data: bytes, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._native.restore(data, graph_module, example_inputs)

    def store_alone(self, compiled: Any) -> bytes | None:
        return self._native.store_alone(compiled) if _is_native(compiled) else None

    def restore_alone(self, data: bytes) -> Callable[..., Any]:
        return self._native.restore_alone(data)

    @property
    def _native(self) -> NativeCompiler:
        compiler = get_backend("native").fw_compiler
        assert isinstance(compiler, NativeCompiler), "the native backend is ours"
        return compiler


def _is_native(compiled: object) -> bool:
    return hasattr(compiled, "stored")
