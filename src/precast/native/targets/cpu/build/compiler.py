"""The C++ compiler: which one, with which flags, and its errors."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precast.errors import BuildError
from precast.options import COMPILERS

if TYPE_CHECKING:
    from precast.native.targets.cpu.sources import Effort

# NaN and infinity keep their meaning; only errno and trapping are given up. Products and sums are rounded
# separately, as in eager; where FMA helps, the math header uses it explicitly. Loops are vectorized, but
# straight-line code is not: in fully unrolled short loops, GCC 12 then confuses masked loads.
COMPILE_FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-fwrapv", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-fno-tree-slp-vectorize", "-Wno-unknown-pragmas",
)  # fmt: skip
# Routines are vectorized like kernels, but not specialized for every case; host code is not worth optimizing.
EFFORT_FLAGS: Mapping[Effort, tuple[str, ...]] = {
    "loops": (),
    "routines": ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fversion-loops-for-strides"),
    "once": ("-O0",),
}
# The C++ library is linked statically: a shipped model needs only libc, libm, libgomp and, if it is called, oneDNN.
LINK_FLAGS = (
    "-shared", "-fopenmp", "-static-libstdc++", "-static-libgcc", "-Wl,-Bsymbolic", "-Wl,--build-id=none",
    "-Wl,--no-undefined", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL", "-ldl",
)  # fmt: skip
SHOWN_ERRORS = 8


@dataclass(frozen=True)
class Compiler:
    """A compiler on this machine. `identity` changes when it is replaced, and is determined without running it."""

    command: tuple[str, ...]
    identity: str


def find_compiler(compiler: str | None = None) -> Compiler:
    """The compiler that the command names, with its arguments, or the first available one of `COMPILERS`."""
    commands = [shlex.split(compiler)] if compiler else [[name] for name in COMPILERS]
    found = [(location, rest) for name, *rest in commands if (location := shutil.which(name))]
    if not found:
        raise BuildError(
            f"no C++ compiler: {compiler or ', '.join(COMPILERS)} cannot be run",
            why="the native backend compiles the loops it writes",
            fix="install one (Debian, Ubuntu: the package g++; Fedora: gcc-c++), or use backend='interpret'",
        )
    location, rest = found[0]
    path = Path(location).resolve()
    facts = path.stat()
    return Compiler((location, *rest), f"{path} {rest} {facts.st_size} {facts.st_mtime_ns}")


def run_compiler(compiler: Compiler, arguments: Sequence[str | Path], *, what: str) -> None:
    """Run it; on failure, raise with the first errors that it printed."""
    command = [*compiler.command, *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(
            f"the C++ compiler refused {what}",
            why=first_errors(finished.stderr) or f"it ended with status {finished.returncode}",
            fix="this is a defect of Precast, or of the compiler: report it, or use backend='interpret'",
            at=" ".join(command),
        )


def first_errors(output: str) -> str:
    lines = [line for line in output.splitlines() if "error" in line.lower() or "undefined reference" in line]
    return "\n       ".join((lines or output.splitlines())[:SHOWN_ERRORS])
