"""CUDA GPUs as a target: loop programs as Triton kernels, launched through the driver; GEMMs by torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precast.cache import open_store
from precast.errors import BuildError
from precast.native.targets import Code, OpenEntry, Target
from precast.options import Options

if TYPE_CHECKING:
    import torch

    from precast.native.call import CompiledGraph
    from precast.native.describe import Entry, Storage
    from precast.native.loops.passes import LoopPass
    from precast.native.loops.program import LoopProgram, Step

OLDEST = 80
"""The lowest compute capability that code is generated for: Ampere."""


class CudaTarget(Target):
    """Fused loops as Triton kernels; GEMMs by cuBLAS, convolutions by cuDNN, attention by torch's operators."""

    name = "cuda"
    device = "cuda"
    routines = frozenset({
        "convolution", "convolution_backward_data", "convolution_backward_weights", "matmul",
    })  # fmt: skip
    likes_channels_last = True
    multiplies_half = True
    keeps_code = True

    @property
    def alone(self) -> Target:
        return PackagedGpu()

    @property
    def passes(self) -> Sequence[LoopPass]:
        from precast.native.targets.cuda.passes import PASSES

        return PASSES

    @property
    def reusing_passes(self) -> Sequence[LoopPass]:
        from precast.native.targets.cuda.passes import REUSING

        return REUSING

    def takes(self, operator: str, steps: Sequence[Step]) -> bool:
        from precast.native.targets.cuda.abilities import takes

        return takes(operator, steps)

    def identity(self, options: Options) -> str:
        from precast.native.targets.cuda.build.cubins import triton_version

        return f"{self.name}, Triton {triton_version()}"

    def get_ready(self, routines: Iterable[str], options: Options) -> None:
        from precast.native.targets.cuda.build.cubins import start_workers

        start_workers()

    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        from precast.native.targets.cuda.build.code import start_code

        return start_code(entries, architecture(), open_store(options))

    def find(self, key: str, needs: Sequence[str], options: Options) -> Code:
        from precast.native.targets.cuda.build.code import find_code

        return find_code(key, open_store(options))

    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        from precast.native.targets.cuda.build.code import GpuCode
        from precast.native.targets.cuda.launcher import launchers
        from precast.native.targets.cuda.run import GpuEntry

        assert isinstance(code, GpuCode), f"{code} was built by another target"
        find = launchers(code)
        return [
            GpuEntry(each, program.fallbacks, find, weights or {}, self.device)
            for each, program in zip(code.programs, programs, strict=True)
        ]

    def listing(self, entries: Sequence[Entry]) -> Mapping[Step, str]:
        from precast.native.targets.cuda.codegen.generate import listing

        return listing(entries)

    def repeated(self, graph: CompiledGraph) -> Callable[[list[Any]], list[Any]] | None:
        from precast.native.targets.cuda.graphs import RecordedGraph, may_be_recorded

        return RecordedGraph(graph) if may_be_recorded(graph) else None


class PackagedGpu(CudaTarget):
    """The same for packages: programs are traced on the CPU, and there are no eager fallbacks."""

    device = "cpu"
    routines = CudaTarget.routines | {"attention", "scan"}
    keeps_code = False

    def takes(self, operator: str, steps: Sequence[Step]) -> bool:
        from precast.native.targets.cuda.abilities import takes
        from precast.native.targets.cuda.codegen.routines import takes_routine

        return takes(operator, steps, alone=True) and all(map(takes_routine, steps))

    def build_library(
        self, entries: Sequence[Entry], storages: Mapping[str, Storage], options: Options, *, processor: str | None
    ) -> tuple[bytes, tuple[str, ...]]:
        from precast.native.targets.cuda.build.packaged import packaged_code

        assert processor is not None, "GPUs are identified by their architecture"
        return packaged_code(entries, int(processor.removeprefix("sm_")), open_store(options)), ()


def architecture() -> int:
    """The compute capability of the current device, e.g. 90; a ``BuildError`` if it is too old."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    if major * 10 + minor < OLDEST:
        raise BuildError(
            f"there is no code for {torch.cuda.get_device_name()}",
            why=f"its compute capability is {major}.{minor}, and kernels are made for 8.0 and newer",
            fix="use backend='nop', or a newer GPU",
        )
    return major * 10 + minor
