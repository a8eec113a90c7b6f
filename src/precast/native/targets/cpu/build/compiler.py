"""The C++ compiler: which one, with which flags, and what it says when it refuses."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precast.errors import BuildError

if TYPE_CHECKING:
    from precast.native.targets.cpu.sources import Effort

CANDIDATES = ("g++", "c++", "clang++")
# NaN and infinity keep their meaning; what is given up is errno, trapping, and nothing else. Products and sums are
# rounded one by one, as eager does; where fusing them helps, the math header asks for it.
COMPILE_FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-fwrapv", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-Wno-unknown-pragmas",
)  # fmt: skip
# Routines are vectorized as kernels are, and not copied for every case; straight-line code is not worth a look.
EFFORT_FLAGS: Mapping[Effort, tuple[str, ...]] = {
    "loops": (),
    "routines": ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fversion-loops-for-strides"),
    "once": ("-O0",),
}
# The C++ library is linked in: a shipped model needs only libc, libm and libgomp, and oneDNN where it calls it.
LINK_FLAGS = (
    "-shared", "-fopenmp", "-static-libstdc++", "-static-libgcc", "-Wl,-Bsymbolic", "-Wl,--build-id=none",
    "-Wl,--no-undefined", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL",
)  # fmt: skip
SHOWN_ERRORS = 8


@dataclass(frozen=True)
class Compiler:
    """A compiler on this machine. `identity` changes when it is replaced; finding that out does not run it."""

    command: tuple[str, ...]
    identity: str


def find_compiler(compiler: str | None = None) -> Compiler:
    """The compiler that the command names, arguments and all, or the first of `CANDIDATES` that there is."""
    commands = [shlex.split(compiler)] if compiler else [[name] for name in CANDIDATES]
    found = [(location, rest) for name, *rest in commands if (location := shutil.which(name))]
    if not found:
        raise BuildError(
            f"no C++ compiler: {compiler or ', '.join(CANDIDATES)} cannot be run",
            why="the native backend compiles the loops it writes",
            fix="install one (Debian, Ubuntu: the package g++; Fedora: gcc-c++), or use backend='interpret'",
        )
    location, rest = found[0]
    path = Path(location).resolve()
    facts = path.stat()
    return Compiler((location, *rest), f"{path} {rest} {facts.st_size} {facts.st_mtime_ns}")


def run_compiler(compiler: Compiler, arguments: Sequence[str | Path], *, what: str) -> None:
    """Run it; on failure, raise with the first errors it printed."""
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
