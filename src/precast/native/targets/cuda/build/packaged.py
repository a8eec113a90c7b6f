"""Code for packages: programs and cubins as bytes, built without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from precast.artifact.gpu_code import GpuCodeEntry, PackedGpuCode, PackedKernel, gpu_code_to_bytes
from precast.cache import Store
from precast.errors import BuildError
from precast.graph.float32_precision import float32_precision
from precast.native.describe import Entry, describe_entry
from precast.native.targets.cuda.build.cubins import cuda_version, require_triton, start_cubins
from precast.native.targets.cuda.codegen.generate import generate


def packaged_code(entries: Sequence[Entry], architecture: int, store: Store) -> bytes:
    """The entries' programs and their kernels for one architecture; a ``BuildError`` if one does not compile."""
    require_triton()
    programs, sources, _ = generate(entries)
    kernels = []
    for source, cubin in zip(sources, start_cubins(sources, architecture, store)(), strict=True):
        if isinstance(cubin, BuildError):
            raise cubin
        parameters = len(source.signature)
        kernels.append(PackedKernel(cubin.symbol, cubin.shared, cubin.warps, parameters, cubin.code))
    packed = [
        GpuCodeEntry(describe_entry(entry), program, _updates(entry))
        for entry, program in zip(entries, programs, strict=True)
    ]
    # As in eager: float32 GEMMs use TF32 only if the user has allowed it.
    tf32 = float32_precision()[0] == "tf32"
    code = PackedGpuCode(architecture, cuda_version(architecture), tf32, tuple(kernels), tuple(packed))
    return gpu_code_to_bytes(code)


def _updates(entry: Entry) -> dict[str, int]:
    """The state that outputs update, and the numbers of those outputs."""
    numbers = {buffer.name: number for number, buffer in enumerate(entry.program.outputs)}
    return {name: numbers[output] for output, name in entry.updates.items()}
