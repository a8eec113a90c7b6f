"""Cubins of Triton kernels: from the cache, or compiled in parallel by a pool of processes."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

from precast.cache import Store, content_key
from precast.errors import BuildError
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.options import environment_variables

_KIND = "cubins"
MOST_WORKERS = 16


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel, and its launch parameters."""

    symbol: str
    shared: int
    warps: int
    code: bytes

    def to_bytes(self) -> bytes:
        head = json.dumps([self.symbol, self.shared, self.warps]).encode()
        return len(head).to_bytes(4, "little") + head + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> Cubin:
        length = int.from_bytes(data[:4], "little")
        symbol, shared, warps = json.loads(data[4 : 4 + length])
        return cls(symbol, shared, warps, data[4 + length :])


@cache
def triton_version() -> str | None:
    """The version of Triton, if it is installed."""
    return version("triton") if find_spec("triton") is not None else None


def require_triton() -> str:
    """The version of Triton; a ``BuildError`` if it is not installed."""
    found = triton_version()
    if found is None:
        raise BuildError(
            "Triton, which compiles kernels for GPUs, is not installed",
            why="the native backend writes GPU code as Triton kernels",
            fix="pip install 'precast[cuda]', or use backend='nop'",
        )
    return found


@cache
def cuda_version(architecture: int) -> int:
    """The CUDA version whose assembler compiles for an architecture: older drivers reject cubins of newer ones."""
    from triton.backends.nvidia.compiler import get_ptxas

    return int(str(get_ptxas(architecture).version).partition(".")[0])


@cache
def _library_text() -> str:
    return (Path(__file__).parents[1] / "library" / "functions.py").read_text()


def cubin_key(source: KernelSource, architecture: int) -> str:
    """The cache key of a kernel's machine code."""
    return content_key([require_triton(), _library_text(), json.dumps(asdict(source)), str(architecture)])


def start_cubins(
    sources: Sequence[KernelSource], architecture: int, store: Store
) -> Callable[[], list[Cubin | BuildError]]:
    """Begin to compile what is not cached; the returned function waits for all of it.

    In place of a kernel that does not compile, it returns the error.
    """
    waiting = [_start(source, architecture, store) for source in sources]
    return lambda: [each.result() if isinstance(each, Future) else each for each in waiting]


def find_cubin(key: str, store: Store) -> Cubin | None:
    """A kernel's code by its key, if it is still cached."""
    data = store.get(_KIND, key)
    return None if data is None else Cubin.from_bytes(data)


def _start(source: KernelSource, architecture: int, store: Store) -> Cubin | Future[Cubin | BuildError]:
    key = cubin_key(source, architecture)
    found = find_cubin(key, store)
    if found is not None:
        return found

    def make() -> Cubin | BuildError:
        made = _workers().compile(source, architecture)
        if isinstance(made, Cubin):
            store.put(_KIND, key, made.to_bytes())
        return made

    return _workers().threads.submit(make)


class _Worker:
    """One compiler process, started on first use."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="precast-triton-")
        variables = {**environment_variables(), "TRITON_CACHE_DIR": str(Path(self.folder.name) / "cache")}
        variables.pop("TRITON_INTERPRET", None)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "precast.native.targets.cuda.build.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            text=True,
        )

    def compile(self, source: KernelSource, architecture: int) -> Cubin | BuildError:
        job = {**asdict(source), "architecture": architecture, "folder": self.folder.name}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            return _failure(source, "the process that ran Triton ended")
        answer = json.loads(line)
        if "error" in answer:
            return _failure(source, answer["error"])
        return Cubin(answer["symbol"], answer["shared"], answer["warps"], Path(answer["cubin"]).read_bytes())

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(timeout=10)
        self.folder.cleanup()


def _failure(source: KernelSource, why: str) -> BuildError:
    return BuildError(
        f"Triton did not compile the kernel {source.name}",
        why=why.strip().splitlines()[-1] if why.strip() else "it gave no reason",
        fix="report it with the kernel's source, please",
    )


class _Workers:
    """A pool of compiler processes, as many as there are processors."""

    def __init__(self) -> None:
        self.count = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0))))
        self.threads = ThreadPoolExecutor(self.count, thread_name_prefix="precast-triton")
        self.idle: SimpleQueue[_Worker | None] = SimpleQueue()
        self.started: list[_Worker] = []
        for _ in range(self.count):
            self.idle.put(None)

    def compile(self, source: KernelSource, architecture: int) -> Cubin | BuildError:
        worker = self.idle.get()
        if worker is None or not worker.is_alive:
            worker = _Worker()
            self.started.append(worker)
        try:
            return worker.compile(source, architecture)
        finally:
            self.idle.put(worker)

    def start(self) -> None:
        """Start all processes in the background."""
        if not self.started:
            for _ in range(self.count):
                self.idle.get()
                self.started.append(_Worker())
                self.idle.put(self.started[-1])

    def end(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for worker in self.started:
            worker.end()


def start_workers() -> None:
    """Start the processes that will compile kernels."""
    if triton_version() is not None:
        _workers().start()


_LOCK = threading.Lock()
_FOUND: list[_Workers] = []


def _workers() -> _Workers:
    with _LOCK:
        if not _FOUND:
            _FOUND.append(_Workers())
            atexit.register(_FOUND[0].end)
    return _FOUND[0]
