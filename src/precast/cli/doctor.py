"""``precast doctor``: is everything here that Precast needs, and if not, how to get it.

Looking changes nothing and does not import torch.
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
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precast._version import TESTED_TORCH
from precast.cache.folder import check_private
from precast.cli.examples import examples
from precast.errors import CacheError
from precast.lazy_names import CPU_BUILDS
from precast.options import Options
from precast.runtime.processor import LEVELS

OLDEST_PYTHON = (3, 11)
OLDEST_TRITON = (3, 6)
FAST_FEATURES = ("avx2", "fma")
TOLD_FEATURES = (*FAST_FEATURES, "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16")


@dataclass(frozen=True)
class Finding:
    """One thing that a machine has or lacks, what it is needed for, and how to get it."""

    name: str
    ok: bool
    found: str
    needed_to: Literal["run", "compile", "run fast", "use GPUs", "write ONNX"]
    fix: str

    @property
    def is_fatal(self) -> bool:
        """Whether models cannot be compiled or run on the CPU for lack of this."""
        return not self.ok and self.needed_to in ("run", "compile")


def examine(options: Options) -> tuple[Finding, ...]:
    """Everything to know about this machine, in the order in which it should be mended."""
    return (
        examine_python(sys.version_info[:3]),
        examine_onednn(Path(sys.prefix) / "lib"),
        examine_torch(_installed_version("torch")),
        examine_onednn_headers(Path(sys.prefix) / "include"),
        examine_compiler(options.compiler or "g++"),
        examine_cache(options.cache_directory),
        examine_processor(Path("/proc/cpuinfo")),
        examine_onnx(_installed_version("onnx-ir"), _installed_version("onnxscript")),
        examine_driver(Path("/proc/driver/nvidia/version"), find_library("cuda")),
        examine_triton(_installed_version("triton")),
    )


def examine_python(version: tuple[int, ...]) -> Finding:
    """Whether this Python is new enough."""
    fix = f"install Python {_dotted(OLDEST_PYTHON)} or newer"
    return Finding("Python", version >= OLDEST_PYTHON, _dotted(version), "run", fix)


def examine_onednn(folder: Path) -> Finding:
    """Whether the library for matrix products and convolutions lies where its wheel puts it."""
    found = sorted(map(str, folder.glob("libdnnl.so.*")))
    return Finding("oneDNN", bool(found), found[0] if found else "none", "run", "pip install onednn-cpu-gomp")


def examine_onednn_headers(folder: Path) -> Finding:
    """Whether that library's headers lie where their wheel puts them."""
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


def examine_onnx(onnx_ir: str | None, onnxscript: str | None) -> Finding:
    """Whether ONNX files can be written."""
    found = f"onnx-ir {onnx_ir}, onnxscript {onnxscript}" if onnx_ir and onnxscript else "none"
    return Finding("ONNX", bool(onnx_ir and onnxscript), found, "write ONNX", "pip install 'precast[onnx]'")


def examine_driver(version: Path, library: str | None) -> Finding:
    """Whether there is a driver for NVIDIA's GPUs."""
    first = version.read_text().partition("\n")[0] if version.exists() else ""
    release = re.search(r"\b\d+\.\d+(\.\d+)?\b", first)
    found = f"{library} {release[0] if release else ''}".strip() if library else "none"
    fix = "install NVIDIA's driver (Debian: apt install nvidia-driver), if this machine has such a GPU"
    return Finding("GPU driver", library is not None, found, "use GPUs", fix)


def examine_triton(version: str | None) -> Finding:
    """Whether Triton, which makes code for GPUs, is installed."""
    known = None if version is None else tuple(int(part) for part in version.split(".")[:2])
    fix = f"pip install 'triton>={_dotted(OLDEST_TRITON)}'"
    return Finding("Triton", known is not None and known >= OLDEST_TRITON, version or "none", "use GPUs", fix)


def examine_compiler(command: str) -> Finding:
    """Whether the C++ compiler can be called, and builds a library with OpenMP."""
    version = _first_line_of([*shlex.split(command), "--version"])
    fix = "install g++ (Debian: apt install g++), or name another compiler in PRECAST_CXX"
    if version is None:
        return Finding("C++ compiler", False, f"no {command}", "compile", fix)
    problem = _what_stops(shlex.split(command))
    return Finding("C++ compiler", problem is None, version if problem is None else problem, "compile", fix)


def examine_cache(folder: Path) -> Finding:
    """Whether the cache folder is the user's alone and can be written, or made where it is not there yet."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if ok and nearest == folder:
        try:
            check_private(folder)
        except CacheError as problem:
            what, *rest = str(problem).splitlines()
            return Finding("cache folder", False, what, "compile", rest[-1].partition("fix: ")[2])
    return Finding("cache folder", ok, str(folder), "compile", "name a folder that you may write in PRECAST_CACHE_DIR")


def examine_processor(facts: Path) -> Finding:
    """Whether the processor has the vector instructions that our kernels are written for."""
    lines = facts.read_text().splitlines() if facts.exists() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    told = [feature for feature in TOLD_FEATURES if feature in flags]
    ok = all(feature in told for feature in FAST_FEATURES)
    fix = "use an x86-64 processor with AVX2 and FMA; programs run without them, but slowly"
    levels = [level for level, needed in LEVELS.items() if set(needed) <= set(flags)]
    found = " ".join([*levels[-1:], *told])
    return Finding("processor", ok, found or "no known features", "run fast", fix)


def _what_stops(command: list[str]) -> str | None:
    """What the compiler says when it cannot build a small library; None if it can."""
    program = '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n'
    with tempfile.TemporaryDirectory(prefix="precast-doctor-") as folder:
        arguments = ["-x", "c++", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-", "-o", f"{folder}/small.so"]
        try:
            done = subprocess.run([*command, *arguments], input=program, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as problem:
            return str(problem)
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return None if done.returncode == 0 else (lines[0] if lines else f"exit code {done.returncode}")


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line_of(command: list[str]) -> str | None:
    """The first line that a command prints, and where it is; None if it is not there or fails."""
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that this machine has what Precast needs.

    What is missing is told with the way to get it. Exits with 1 if models cannot be compiled (or with --run-only: run)
    on the CPU; GPUs and ONNX are optional.
    """
    findings = [
        finding
        for finding in examine(Options.from_environment())
        if not run_only or finding.needed_to in ("run", "run fast")
    ]
    healthy = not any(finding.is_fatal for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        Console().print(_as_table(findings))
    if not healthy:
        raise typer.Exit(1)


def _as_table(findings: Sequence[Finding]) -> Table:
    table = Table("what", "needed to", "state", "found, or how to get it", box=None, pad_edge=False)
    for finding in findings:
        told = finding.found if finding.ok else f"{finding.found}: {finding.fix}"
        table.add_row(finding.name, finding.needed_to, _state(finding), Text(told, overflow="fold"))
    return table


def _state(finding: Finding) -> Text:
    if finding.ok:
        return Text("ok", style="green")
    if finding.is_fatal:
        return Text("missing", style="red")
    return Text("slow", style="yellow") if finding.needed_to == "run fast" else Text("absent", style="dim")
