"""Loop programs → C++ sources. Kernels that are equal up to names are written once and called several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precast.codegen.cpp_types import Namer
from precast.codegen.describe import Entry, Storage
from precast.codegen.groups import write_group
from precast.codegen.host import Call, Embedded, GroupCall, write_host
from precast.codegen.kernels import KernelFunction, write_kernel
from precast.codegen.routines import routine_sources
from precast.ir.loops.canonical import canonical_key, kernel_parameters, pattern_of
from precast.ir.loops.program import Kernel, KernelGroup, Step
from precast.ir.loops.sources import Sources, Unit
from precast.ir.loops.starts import from_start

KERNELS_A_UNIT = 12
"""How many kernels share a source file: few enough to build in parallel, many enough to read the headers once."""
LONGEST_NAME = 60


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
    units = [Unit("host.cpp", host, "once"), *_kernel_units(list(functions.values()))]
    fixed = routine_sources(routine for entry in entries for routine in entry.program.routines)
    return Sources((*units, *fixed.units), fixed.headers)


def _kernel_calls(entry: Entry, functions: dict[str, KernelFunction], namer: Namer) -> dict[Step, Call | GroupCall]:
    calls: dict[Step, Call | GroupCall] = {}
    for step in entry.program.steps:
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
