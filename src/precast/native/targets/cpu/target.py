"""The CPU as a target: loop programs as C++, built by this machine's compiler, over oneDNN and our own routines.

Code generation and building are imported when something is compiled: a start from stored code does not need them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache import content_key, open_store
from precast.native.targets import Code, OpenEntry, StepTime, Target
from precast.native.targets.cpu.build.built import Library, find_library
from precast.native.targets.cpu.build.compiler import find_compiler
from precast.options import Options
from precast.runtime.entry import Entry as RuntimeEntry
from precast.runtime.entry import library_entries
from precast.runtime.libraries import LAPACK, preload
from precast.runtime.native import load_library

if TYPE_CHECKING:
    import torch

    from precast.native.describe import Entry, Storage
    from precast.native.loops.passes import LoopPass
    from precast.native.loops.program import LoopProgram, Step

_WEIGHTS_SYMBOL = "precast_embedded_weights"
_LINEAR_ALGEBRA = frozenset({
    "cholesky", "eigh", "exchanged_rows", "geqrf", "householder_product", "least_squares", "lu_factor", "lu_solve",
    "matrix_exp", "ormqr", "svd", "triangular_solve",
})  # fmt: skip
"""LAPACK routines. Where torch is loaded, its own operators are called: they need no other library."""


class _CStepTime(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("calls", "total", "shortest", "started", "last"))


class CpuTarget(Target):
    """Fused loops in C++ with OpenMP; GEMMs and convolutions by oneDNN, or by our own routines."""

    name = "cpu"
    device = "cpu"
    routines = frozenset({
        "attention", "attention_backward", "convolution", "convolution_backward_data", "convolution_backward_weights",
        "depthwise_convolution", "fft", "grouped_product", "matmul", "nonzero", "quantized_product", "scan", "search",
        "sort", "unique",
    })  # fmt: skip
    likes_channels_last = True
    keeps_code = True

    @property
    def alone(self) -> Target:
        return _CpuAlone()

    def libraries(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        is_needed = any(entry.program.routines & _LINEAR_ALGEBRA for entry in entries)
        return (LAPACK,) if is_needed else ()

    @property
    def passes(self) -> Sequence[LoopPass]:
        from precast.native.targets.cpu.passes import PASSES

        return PASSES

    @property
    def reusing_passes(self) -> Sequence[LoopPass]:
        from precast.native.targets.cpu.passes import REUSING

        return REUSING

    def tune(self, entries: Sequence[Entry], options: Options) -> Sequence[Entry]:
        from precast.native.targets.cpu.autotuning import Measure, choose_ways, timer
        from precast.native.targets.cpu.build.library import build_early
        from precast.native.targets.cpu.codegen.generate import generate, kernel_sources

        store = open_store(options)

        def measure_meanwhile() -> Measure:
            # Kernels do not depend on the autotuned choice: they are compiled while the measurement is prepared.
            build_early(kernel_sources(generate(entries)), store=store, compiler=options.compiler)
            return timer(store=store, compiler=options.compiler)

        return choose_ways(entries, store=store, measure=measure_meanwhile)

    def identity(self, options: Options) -> str:
        return find_compiler(options.compiler).identity

    def get_ready(self, routines: Iterable[str], options: Options) -> None:
        from precast.native.targets.cpu.build.library import build_early
        from precast.native.targets.cpu.codegen.generate import routine_sources

        build_early(routine_sources(routines), store=open_store(options), compiler=options.compiler)

    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        from precast.native.targets.cpu.build.library import start_build
        from precast.native.targets.cpu.codegen.generate import generate

        sources = generate(entries, profile=options.profile)
        return start_build(sources, store=open_store(options), compiler=options.compiler)

    def find(self, key: str, needs: Sequence[str], options: Options) -> Code:
        with open_store(options).held():
            library = find_library(key, tuple(needs), store=open_store(options))
            # Once loaded, it can be opened even if the store deletes the file.
            preload(library.needs)
            load_library(library.path)
        return library

    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        assert isinstance(code, Library), f"{code} was built by another target"
        fallback = None
        if any(program.fallbacks for program in programs):
            from precast.native.targets.cpu.fallback import torch_fallback

            fallback = torch_fallback(programs)
        return library_entries(code.path, needs=code.needs, weights=weights, fallback=fallback)

    def listing(self, entries: Sequence[Entry]) -> Mapping[Step, str]:
        from precast.native.targets.cpu.codegen.generate import listing

        return listing(entries)

    def way_of(self, step: Step) -> str | None:
        from precast.native.targets.cpu.autotuning import way_of

        return way_of(step)

    def step_times(self, entry: OpenEntry, steps: int) -> Sequence[StepTime]:
        assert isinstance(entry, RuntimeEntry), f"{entry} was opened by another target"
        function = entry.model.library.handle.precast_step_times
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.POINTER(_CStepTime)
        found = function(entry.number)
        return tuple(
            StepTime(each.calls, each.total, each.shortest, each.started, each.last)
            for each in (found[number] for number in range(steps))
        )

    def build_library(
        self, entries: Sequence[Entry], storages: Mapping[str, Storage], options: Options, *, processor: str | None
    ) -> tuple[bytes, tuple[str, ...]]:
        from precast.native.targets.cpu.build.library import build
        from precast.native.targets.cpu.codegen.generate import generate

        sources, store = generate(entries, storages=storages), open_store(options)
        flags = (f"-march={processor}",) if processor else ()
        with store.held():
            library = build(sources, store=store, compiler=options.compiler, extra_flags=flags)
            return library.path.read_bytes(), (*library.needs, *self.libraries(entries))

    def write_library(
        self,
        entry: Entry,
        storages: Mapping[str, Storage],
        options: Options,
        *,
        weights: Path,
        manifest: str,
        place: Callable[[str], Path],
    ) -> Path:
        from precast.native.targets.cpu.build.library import build_file
        from precast.native.targets.cpu.codegen.generate import generate
        from precast.native.targets.cpu.codegen.host import Embedded

        size, store = weights.stat().st_size, open_store(options)
        sources = generate([entry], storages=storages, embedded=Embedded(_WEIGHTS_SYMBOL, size, manifest))
        path = place(content_key([unit.text for unit in sources.units]))
        data = {_WEIGHTS_SYMBOL: weights} if size else {}
        with store.held():
            build_file(sources, path, store=store, compiler=options.compiler, data=data)
        return path


class _CpuAlone(CpuTarget):
    """The CPU for programs that run without torch."""

    routines = CpuTarget.routines | _LINEAR_ALGEBRA
