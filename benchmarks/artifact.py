"""What it costs to start from a packaged model: cold start, loading by size, calls, threads, memory.

Processes that start are measured one by one, the smallest of several counts: wall clock, and processor time, which
other work on the machine disturbs less. Writes a table, and JSON with ``--json``.

    python benchmarks/artifact.py
    python benchmarks/artifact.py --repeat 3 --small
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import precast
import precast.runtime

MEGABYTE = 2**20
RUN = """
import sys
sys.modules["torch"] = None
import numpy as np
import precast.runtime
model = precast.runtime.load(sys.argv[1])
model(np.ones((1, 64), np.float32))
"""
EAGER = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).eval()
with torch.no_grad():
    model(torch.ones(1, 64))
"""
NUMPY = "import numpy"


class Large(torch.nn.Module):
    """A small computation over weights of any size."""

    def __init__(self, megabytes: int):
        super().__init__()
        self.table = torch.nn.Parameter(torch.ones(megabytes * MEGABYTE // 4 // 64, 64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[3]


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).eval()


def wide_model() -> torch.nn.Module:
    """Enough work in a call that Python's lock, which is free meanwhile, does not decide how calls overlap."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    return torch.nn.Sequential(*layers).eval()


def of_a_process(code: str, *arguments: object, repeat: int) -> dict[str, float]:
    """Seconds that a Python process takes from start to end."""
    found = []
    for _ in range(repeat):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, env=_environment())
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {"wall": min(wall for wall, _ in found), "processor": min(cpu for _, cpu in found)}


def _environment() -> dict[str, str]:
    # Bytecode is kept, as where a package is installed.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "precast-benchmark-bytecode")}


def of_loading(path: Path, *, repeat: int) -> float:
    """Seconds to load and to run once, in a process that has loaded another model before."""
    found = []
    for _ in range(repeat):
        started = time.perf_counter()
        precast.runtime.load(path)(np.ones((1, 64), np.float32))
        found.append(time.perf_counter() - started)
    return min(found)


def of_calls(path: Path, *, threads: int, seconds: float) -> float:
    """Calls a second from so many threads."""
    model, x = precast.runtime.load(path, threads=1), np.ones((64, 512), np.float32)
    stop = time.perf_counter() + seconds

    def work(_: int) -> int:
        count = 0
        while time.perf_counter() < stop:
            model(x)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads))) / seconds


def growth(path: Path, calls: int) -> int:
    """How many kilobytes so many calls add to the process."""
    model, x = precast.runtime.load(path), np.ones((1, 64), np.float32)
    for _ in range(1000):
        model(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        model(x)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def measure(folder: Path, *, repeat: int, megabytes: int) -> dict[str, Any]:
    x = torch.ones(1, 64)
    small = precast.package(small_model(), (x,), path=folder / "small.precast")
    wide = precast.package(wide_model(), (torch.ones(64, 512),), path=folder / "wide.precast")
    sizes = {size: precast.package(Large(size), (x,), path=folder / f"{size}.precast") for size in (1, megabytes)}
    library = precast.aot_compile(Large(megabytes), (x,), options={"output_path": folder / "large.so"})
    of_process = {
        "import numpy": of_a_process(NUMPY, repeat=repeat),
        "small model, cold": of_a_process(RUN, small, repeat=repeat),
        "eager torch, cold": of_a_process(EAGER, repeat=repeat),
        **{f"{size} MB, cold": of_a_process(RUN, path, repeat=repeat) for size, path in sizes.items()},
    }
    of_loading(small, repeat=1)
    started = time.perf_counter()
    precast.aot_load(library, "cpu")(np.ones((1, 64), np.float32))
    library_seconds = time.perf_counter() - started
    return {
        "process": of_process,
        "load": {f"{size} MB": of_loading(path, repeat=repeat) for size, path in sizes.items()},
        "load library": {f"{megabytes} MB": library_seconds},
        "calls a second": {threads: of_calls(wide, threads=threads, seconds=1.0) for threads in (1, 2, 8)},
        "kilobytes after 10000 calls": growth(small, 10_000),
    }


def report(found: dict[str, Any]) -> None:
    for name, seconds in found["process"].items():
        print(f"{name:24} {seconds['wall'] * 1e3:8.1f} ms wall {seconds['processor'] * 1e3:8.1f} ms processor")
    for what in ("load", "load library"):
        for size, seconds in found[what].items():
            print(f"{what + ' ' + size:24} {seconds * 1e3:8.1f} ms")
    for threads, calls in found["calls a second"].items():
        print(f"{threads} threads {calls:23.0f} calls a second")
    print(f"10000 calls add {found['kilobytes after 10000 calls']:16} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="40 MB of weights instead of 440")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), repeat=arguments.repeat, megabytes=40 if arguments.small else 440)
    report(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
