"""Loop programs → C++ sources. Kernels that are equal up to names are written once and called several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from precast.codegen.canonical import canonical_key
from precast.codegen.cpp_types import Namer
from precast.codegen.describe import Entry, Storage
from precast.codegen.host import Call, Embedded, write_host
from precast.codegen.kernels import KernelFunction, kernel_parameters, write_kernel
from precast.ir.loops.program import Kernel, LibraryCall
from precast.ir.loops.sources import Sources, Unit

KERNELS_A_UNIT = 24
"""How many kernels share a source file: few enough to build in parallel, many enough to read the headers once."""
LONGEST_NAME = 60
ROUTINE_FILES = {
    "convolution": "convolution",
    "convolution_backward_data": "convolution",
    "convolution_backward_weights": "convolution",
}
"""Which source file has a routine, where it is not the file of its own name."""
NEEDS_ONEDNN = frozenset({"matmul", "convolution", "convolution_backward_data", "convolution_backward_weights"})
_HERE = Path(__file__).parent


def generate(
    entries: Sequence[Entry],
    *,
    storages: Mapping[str, Storage] | None = None,
    embedded: Embedded | None = None,
    profile: bool = False,
) -> Sources:
    """Write the C++ of a library with these entries.

    `storages` says where the state lies among stored weights: without it, whoever opens the model passes all of it.
    `embedded` is data that is linked in. `profile` asks for a timer around every step.
    """
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), f"two entries have one name: {names}"
    functions: dict[str, KernelFunction] = {}
    namer = Namer()
    calls = [_kernel_calls(entry, functions, namer) for entry in entries]
    host = write_host(entries, calls, storages=storages or {}, embedded=embedded, profile=profile)
    units = [Unit("host.cpp", host), *_kernel_units(list(functions.values()))]
    routines = {step.routine for entry in entries for step in entry.program.steps if isinstance(step, LibraryCall)}
    files = sorted({ROUTINE_FILES.get(routine, routine) for routine in routines})
    units += [_support("support.cpp"), _support("state.cpp"), *(_support(f"{name}.cpp") for name in files)]
    return Sources(tuple(units), _headers(), needs_onednn=bool(routines & NEEDS_ONEDNN))


def _kernel_calls(entry: Entry, functions: dict[str, KernelFunction], namer: Namer) -> dict[Kernel, Call]:
    calls: dict[Kernel, Call] = {}
    for step in entry.program.steps:
        if isinstance(step, Kernel):
            key = canonical_key(step)
            if key not in functions:
                functions[key] = write_kernel(step, namer.fresh(step.name[:LONGEST_NAME]))
            calls[step] = Call(functions[key], *kernel_parameters(step))
    return calls


def _kernel_units(functions: list[KernelFunction]) -> list[Unit]:
    starts = range(0, len(functions), KERNELS_A_UNIT)
    return [_kernel_unit(number, functions[start : start + KERNELS_A_UNIT]) for number, start in enumerate(starts)]


def _kernel_unit(number: int, functions: list[KernelFunction]) -> Unit:
    texts = [function.text for function in functions]
    parts = ['#include "precast_kernels.h"', "", "namespace kernels {", "", *texts, "}  // namespace kernels", ""]
    return Unit(f"kernels_{number}.cpp", "\n".join(parts))


def _support(name: str) -> Unit:
    return Unit(name, (_HERE / "support" / name).read_text())


def _headers() -> tuple[Unit, ...]:
    paths = sorted([*_HERE.glob("include/*.h"), *_HERE.glob("support/*.h"), public_header()])
    return tuple(Unit(path.name, path.read_text()) for path in paths)


def public_header() -> Path:
    """Where ``precast.h`` lies: inside an installed package, or at the root of a checkout."""
    package = _HERE.parent
    candidates = [package / "include" / "precast.h", package.parent.parent / "include" / "precast.h"]
    return next(path for path in candidates if path.exists())
