"""Loop programs → C++ sources. Kernels that are equal up to names are generated once and called several times.

Also assembles the fixed part of a library: the C interface, the routines that programs call, and the shared headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from precast.events import stage
from precast.native.describe import Entry, Storage
from precast.native.loops.canonical import canonical_key, from_start, kernel_parameters, pattern_of
from precast.native.loops.program import Kernel, KernelGroup, Step, all_steps
from precast.native.targets.cpu.codegen.groups import write_group
from precast.native.targets.cpu.codegen.host import Call, Embedded, GroupCall, write_host, write_steps
from precast.native.targets.cpu.codegen.kernels import KernelFunction, write_kernel
from precast.native.targets.cpu.codegen.types import Namer
from precast.native.targets.cpu.sources import Sources, Unit

ROUTINE_FILES = {
    **dict.fromkeys(
        ("convolution", "convolution_backward_data", "convolution_backward_weights", "depthwise_convolution"),
        ("convolution", "direct_convolution", "own_convolutions", "product"),
    ),
    **dict.fromkeys(
        ("cholesky", "exchanged_rows", "geqrf", "householder_product", "lu_factor", "ormqr"),
        ("lapack", "lapack_factors"),
    ),
    **dict.fromkeys(("least_squares", "lu_solve", "triangular_solve"), ("lapack", "lapack_solvers")),
    **dict.fromkeys(("eigh", "matrix_exp", "svd"), ("lapack", "lapack_spectra")),
    "grouped_product": ("grouped_product", "matmul", "product"),
    "matmul": ("matmul", "product"),
    "quantized_product": ("product", "quantized_product"),
}
"""Source files of routines that are not in the file of their own name."""
IN_LOOPS = frozenset({"direct_convolution", "nonzero", "own_convolutions", "product", "quantized_product", "scan",
                      "search", "sort"})  # fmt: skip
"""Files whose loops run slower with the flags for routines."""
NEEDS_ONEDNN = frozenset({"convolution", "matmul"})
"""Files that call oneDNN."""
IN_EVERY_LIBRARY = ("support", "state")
"""Compiled as one unit: parsing the standard headers takes half of the time of each."""
_HERE = Path(__file__).parents[1]


def routine_sources(routines: Iterable[str]) -> Sources:
    """The sources common to all libraries, and those of these routines; they do not depend on the program."""
    files = sorted({file for routine in routines for file in ROUTINE_FILES.get(routine, (routine,))})
    return Sources((_unit(*IN_EVERY_LIBRARY), *map(_unit, files)), _headers())


@cache
def _unit(name: str, *others: str) -> Unit:
    text = "\n".join((_HERE / "support" / f"{each}.cpp").read_text() for each in (name, *others))
    return Unit(f"{name}.cpp", text, "loops" if name in IN_LOOPS else "routines", needs_onednn=name in NEEDS_ONEDNN)


@cache
def _headers() -> tuple[Unit, ...]:
    paths = sorted([*_HERE.glob("include/*.h"), *_HERE.glob("support/*.h"), public_header()])
    return tuple(Unit(path.name, path.read_text()) for path in paths)


def public_header() -> Path:
    """The folder of ``precast.h``: inside an installed package, or at the root of a checkout."""
    package = _HERE.parents[2]
    candidates = [package / "include" / "precast.h", package.parent.parent / "include" / "precast.h"]
    return next(path for path in candidates if path.exists())


KERNELS_A_UNIT = 12
"""Kernels per source file: few enough to build in parallel, many enough to amortize the headers."""
LONGEST_NAME = 60


@stage
def generate(
    entries: Sequence[Entry],
    *,
    storages: Mapping[str, Storage] | None = None,
    embedded: Embedded | None = None,
    profile: bool = False,
) -> Sources:
    """Write the C++ of a library with these entries.

    `storages` locates the state in stored weights: without it, the opener of the model passes all of the state.
    `embedded` is data that is linked in. `profile` adds a timer around every step.
    """
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), f"two entries have one name: {names}"
    functions: dict[str, KernelFunction] = {}
    namer = Namer()
    calls = [_kernel_calls(entry, functions, namer) for entry in entries]
    host = write_host(entries, calls, storages=storages or {}, embedded=embedded, profile=profile)
    units = [Unit("host.cpp", host, "once"), *_kernel_units(list(functions.values()))]
    fixed = routine_sources(routine for entry in entries for routine in entry.program.routines)
    return Sources((*units, *fixed.units), fixed.headers)


def listing(entries: Sequence[Entry]) -> dict[Step, str]:
    """The code of each step, for display: a kernel's function, and the host code that calls it or a library routine."""
    functions: dict[str, KernelFunction] = {}
    namer, found = Namer(), dict[Step, str]()
    for entry in entries:
        calls = _kernel_calls(entry, functions, namer)
        for step, called in write_steps(entry, calls).items():
            found[step] = f"{calls[step].function.text}\n{called}" if step in calls else called
    return found


def kernel_sources(sources: Sources) -> Sources:
    """The units that hold kernels."""
    return Sources(tuple(unit for unit in sources.units if unit.effort == "loops"), sources.headers)


def _kernel_calls(entry: Entry, functions: dict[str, KernelFunction], namer: Namer) -> dict[Step, Call | GroupCall]:
    calls: dict[Step, Call | GroupCall] = {}
    for step in all_steps(entry.program):
        wish = step.name[:LONGEST_NAME]
        if isinstance(step, Kernel):
            kernel, starts = from_start(step)
            key = canonical_key(kernel)
            if key not in functions:
                functions[key] = write_kernel(kernel, namer.fresh(wish))
            calls[step] = Call(functions[key], *kernel_parameters(kernel), starts)
        elif isinstance(step, KernelGroup):
            patterns = [pattern_of(member) for member in step.members]
            key = f"group of {canonical_key(patterns[0].kernel)}"
            if key not in functions:
                functions[key] = write_group(patterns[0].kernel, namer.fresh(wish))
            calls[step] = GroupCall(functions[key], tuple((each.buffers, each.sizes) for each in patterns))
    return calls


def _kernel_units(functions: list[KernelFunction]) -> list[Unit]:
    starts = range(0, len(functions), KERNELS_A_UNIT)
    return [_kernel_unit(number, functions[start : start + KERNELS_A_UNIT]) for number, start in enumerate(starts)]


def _kernel_unit(number: int, functions: list[KernelFunction]) -> Unit:
    texts = [function.text for function in functions]
    parts = ['#include "precast_kernels.h"', "", "namespace kernels {", "", *texts, "}  // namespace kernels", ""]
    return Unit(f"kernels_{number}.cpp", "\n".join(parts))
