"""``precast doctor``: checks whether this machine has everything that Precast needs, and how to install the rest.

The checks change nothing and do not import torch.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes.util import find_library
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from precast._version import TESTED_TORCH
from precast.cache.folder import check_private
from precast.cli.examples import examples
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table
from precast.errors import CacheError, GpuError
from precast.lazy_names import CPU_BUILDS
from precast.options import COMPILERS, Options
from precast.runtime.gpu.driver import driver_version, found_gpus
from precast.runtime.gpu.libraries import CUBLASLT, CUDNN, NvidiaLibrary
from precast.runtime.gpu.libraries import candidates as candidates_of_nvidia
from precast.runtime.libraries import KNOWN, LAPACK, candidates
from precast.runtime.processor import LEVELS

OLDEST_PYTHON = (3, 11)
OLDEST_TRITON = (3, 6)
FAST_FEATURES = ("avx2", "fma")
CPU_FEATURES = (*FAST_FEATURES, "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16")


@dataclass(frozen=True)
class Finding:
    """One requirement, whether the machine fulfils it, what it is needed for, and how to install it."""

    name: str
    ok: bool
    found: str
    needed_to: Literal[
        "run", "compile", "start fast", "run fast", "run linear algebra", "sign", "write ONNX", "run on GPUs",
        "compile for GPUs",
    ]  # fmt: skip
    fix: str

    @property
    def is_fatal(self) -> bool:
        """Whether without it models cannot be compiled or run on the CPU."""
        return not self.ok and self.needed_to in ("run", "compile")


def examine(options: Options) -> tuple[Finding, ...]:
    """All findings about this machine, in the order in which they should be fixed."""
    return (
        examine_python(sys.version_info[:3]),
        examine_onednn(Path(sys.prefix) / "lib"),
        examine_torch(_installed_version("torch")),
        examine_onednn_headers(Path(sys.prefix) / "include"),
        examine_compiler(options.compiler or next(filter(shutil.which, COMPILERS), COMPILERS[0])),
        examine_cache(options.cache_directory),
        examine_processor(Path("/proc/cpuinfo")),
        examine_lapack(candidates(LAPACK), KNOWN[LAPACK].fix),
        examine_signatures(_installed_version("cryptography")),
        examine_onnx(_installed_version("onnx-ir"), _installed_version("onnxscript")),
        examine_gpus(Path("/proc/driver/nvidia/version")),
        examine_nvidia_library("cuBLASLt", CUBLASLT),
        examine_nvidia_library("cuDNN", CUDNN),
        examine_triton(_installed_version("triton")),
    )


def examine_python(version: tuple[int, ...]) -> Finding:
    """Whether this Python is new enough."""
    fix = f"install Python {_dotted(OLDEST_PYTHON)} or newer"
    return Finding("Python", version >= OLDEST_PYTHON, _dotted(version), "run", fix)


def examine_onednn(folder: Path) -> Finding:
    """Whether the library for GEMMs and convolutions is where its wheel puts it."""
    found = sorted(map(str, folder.glob("libdnnl.so.*")))
    return Finding("oneDNN", bool(found), found[0] if found else "none", "run", "pip install onednn-cpu-gomp")


def examine_onednn_headers(folder: Path) -> Finding:
    """Whether that library's headers are where their wheel puts them."""
    ok = (folder / "dnnl.h").exists()
    return Finding("oneDNN headers", ok, str(folder) if ok else "none", "compile", "pip install onednn-devel-cpu-gomp")


def examine_torch(version: str | None) -> Finding:
    """Whether torch is installed and new enough."""
    known = None if version is None else tuple(int(part) for part in version.split(".")[:2])
    fix = f"pip install 'torch>={_dotted(TESTED_TORCH[0])}' (without CUDA: {CPU_BUILDS}, choose CPU)"
    is_tested = known is not None and TESTED_TORCH[0] <= known <= TESTED_TORCH[1]
    tested = (
        "" if known is None or is_tested else f", tested are {_dotted(TESTED_TORCH[0])} to {_dotted(TESTED_TORCH[1])}"
    )
    return Finding(
        "torch", known is not None and known >= TESTED_TORCH[0], f"{version or 'none'}{tested}", "compile", fix
    )


def examine_lapack(candidates: Sequence[str], fix: str) -> Finding:
    """Whether packages with linear algebra find a LAPACK, at one of these paths or by one of these names."""
    found = next(filter(_is_library, candidates), None)
    return Finding("LAPACK", found is not None, found or "none", "run linear algebra", fix)


def examine_signatures(version: str | None) -> Finding:
    """Whether packages can be signed, and their signatures checked."""
    return Finding("cryptography", version is not None, version or "none", "sign", "pip install 'precast[sign]'")


def examine_onnx(onnx_ir: str | None, onnxscript: str | None) -> Finding:
    """Whether ONNX files can be written."""
    found = f"onnx-ir {onnx_ir}, onnxscript {onnxscript}" if onnx_ir and onnxscript else "none"
    return Finding("ONNX", bool(onnx_ir and onnxscript), found, "write ONNX", "pip install 'precast[onnx]'")


def examine_gpus(release: Path) -> Finding:
    """Whether there is a driver for NVIDIA GPUs, and a GPU that it finds; `release` is the file with its version."""
    fix = "install NVIDIA's driver (Debian: apt install nvidia-driver) if this machine has such a GPU"
    try:
        gpus = ", ".join(f"{gpu.name} (sm_{gpu.capability})" for gpu in found_gpus())
        cuda = _dotted(driver_version())
    except GpuError as problem:
        return Finding("GPU and driver", False, problem.what, "run on GPUs", fix)
    first = release.read_text().partition("\n")[0] if release.exists() else ""
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", first)
    found = f"{gpus}, driver {version[0]}, CUDA {cuda}" if version else f"{gpus}, CUDA {cuda}"
    return Finding("GPU and driver", True, found, "run on GPUs", fix)


def examine_nvidia_library(name: str, library: NvidiaLibrary) -> Finding:
    """Whether packages for GPUs find a library of NVIDIA's."""
    found = next(filter(_is_library, candidates_of_nvidia(library)), None)
    return Finding(name, found is not None, found or "none", "run on GPUs", library.fix)


def examine_triton(version: str | None) -> Finding:
    """Whether Triton, which compiles kernels for GPUs, is installed."""
    known = None if version is None else tuple(int(part) for part in version.split(".")[:2])
    fix = f"pip install 'triton>={_dotted(OLDEST_TRITON)}'"
    return Finding("Triton", known is not None and known >= OLDEST_TRITON, version or "none", "compile for GPUs", fix)


def examine_compiler(command: str) -> Finding:
    """Whether the C++ compiler can be called, and builds a library with OpenMP."""
    version = _first_line_of([*shlex.split(command), "--version"])
    fix = "install g++ (Debian: apt install g++), or name another compiler in PRECAST_CXX"
    if version is None:
        return Finding("C++ compiler", False, f"no {command}", "compile", fix)
    problem = _what_stops(shlex.split(command))
    return Finding("C++ compiler", problem is None, version if problem is None else problem, "compile", fix)


def examine_cache(folder: Path) -> Finding:
    """Whether the cache folder is private and writable, or can be created."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if ok and nearest == folder:
        try:
            check_private(folder)
        except CacheError as problem:
            what, *rest = str(problem).splitlines()
            return Finding("cache folder", False, what, "start fast", rest[-1].partition("fix: ")[2])
    found = str(folder) if ok else f"{folder} cannot be written"
    return Finding("cache folder", ok, found, "start fast", "name a folder that you may write in PRECAST_CACHE_DIR")


def examine_processor(facts: Path) -> Finding:
    """Whether the processor has the vector instructions that our kernels use."""
    lines = facts.read_text().splitlines() if facts.exists() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    features = [feature for feature in CPU_FEATURES if feature in flags]
    ok = all(feature in features for feature in FAST_FEATURES)
    fix = "use an x86-64 processor with AVX2 and FMA; programs run without them, but slowly"
    levels = [level for level, needed in LEVELS.items() if set(needed) <= set(flags)]
    found = " ".join([*levels[-1:], *features])
    return Finding("processor", ok, found or "no known features", "run fast", fix)


def _what_stops(command: list[str]) -> str | None:
    """The compiler's message if it cannot build a small library; None if it can."""
    program = '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n'
    with tempfile.TemporaryDirectory(prefix="precast-doctor-") as folder:
        arguments = ["-x", "c++", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-", "-o", f"{folder}/small.so"]
        try:
            done = subprocess.run([*command, *arguments], input=program, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as problem:
            return str(problem)
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return None if done.returncode == 0 else (lines[0] if lines else f"exit code {done.returncode}")


def _is_library(candidate: str) -> bool:
    """Whether there is such a file, or the linker finds a library of this name."""
    if "/" in candidate:
        return Path(candidate).is_file()
    return find_library(candidate.removeprefix("lib").partition(".so")[0]) is not None


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line_of(command: list[str]) -> str | None:
    """The first line that a command prints, and its path; None if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{result.stdout.partition(chr(10))[0]}, {shutil.which(command[0])}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast doctor",
    "precast doctor --run-only --json",
)


@app.command(epilog=EXAMPLES)
def doctor(
    run_only: Annotated[bool, typer.Option("--run-only", help="Check only what running a package needs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine for everything that Precast needs.

    Says how to get what is missing. The exit code is 1 if models cannot be compiled (with --run-only: cannot be run)
    on the CPU; everything else is optional.
    """
    findings = [
        finding
        for finding in examine(Options.from_environment())
        if not run_only or finding.needed_to.startswith("run")
    ]
    healthy = not any(finding.is_fatal for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print_table(_as_table(findings))
    if not healthy:
        raise typer.Exit(1)


def _as_table(findings: Sequence[Finding]) -> Table:
    table = Table("what", "needed to", "state", "found, or how to get it", box=None, pad_edge=False)
    for finding in findings:
        text = finding.found if finding.ok else f"{finding.found}: {finding.fix}"
        table.add_row(finding.name, finding.needed_to, _state(finding), Text(text, overflow="fold"))
    return table


def _state(finding: Finding) -> Text:
    if finding.ok:
        return Text("ok", style="green")
    if finding.is_fatal:
        return Text("missing", style="red")
    return (
        Text("slow", style="yellow") if finding.needed_to in ("start fast", "run fast") else Text("absent", style="dim")
    )
