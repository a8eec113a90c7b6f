"""Hostile files, arrays and calls from C: ``python -m tests.hostile.run --files 100000 --arrays 10000 --workers 16``.

Every case is made from the seed and its number alone: ``--files 1 --first 4711`` runs that one again. With
``--sanitized``, code in packages has the address and undefined-behaviour sanitizers in it, for files, arrays and calls.
Failures are told as they are found, one line each; the last line sums up.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tests.hostile.arrays import array_cases
from tests.hostile.bases import SANITIZED, bases
from tests.hostile.callers import caller_cases
from tests.hostile.children import Failure, Limits, failures
from tests.hostile.files import run_file

SECONDS, GIGABYTES = 20, 4.0


class Attack(NamedTuple):
    """Which cases are tried, made from which seed, with sanitizers or without, in how many processes."""

    seed: int
    first: int = 0
    is_sanitized: bool = False
    workers: int = 1

    @property
    def compiler(self) -> str | None:
        return SANITIZED if self.is_sanitized else None

    @property
    def limits(self) -> Limits:
        # Sanitizers reserve more addresses than any limit would allow, and have a limit of their own; what they say is
        # wanted.
        return Limits(SECONDS, None if self.is_sanitized else GIGABYTES, is_silent=not self.is_sanitized)

    def on_files(self, count: int) -> Iterator[Failure]:
        """The files that were not refused as they should be, nor used without harm."""
        honest = bases(self.compiler)
        return self._failures(lambda case: run_file(honest, self.seed, case), count)

    def on_arrays(self, count: int) -> Iterator[Failure]:
        """The arrays that gave other numbers than they hold, or worse."""
        return self._failures(array_cases(self.seed, compiler=self.compiler), count)

    def on_calls(self, count: int) -> Iterator[Failure]:
        """The calls of the C interface that were not answered with a status, or did not do what it says."""
        return self._failures(caller_cases(self.seed, compiler=self.compiler), count)

    def _failures(self, run: Any, count: int) -> Iterator[Failure]:
        return failures(run, range(self.first, self.first + count), self.limits, workers=self.workers)


def sanitized_environment() -> dict[str, str]:
    """What a process needs that loads code with sanitizers in it."""
    names = ("libasan.so", "libubsan.so")
    found = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    options = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096"
    return os.environ | {"LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": options}


def _told(what: str, found: Iterator[Failure]) -> int:
    number = 0
    for number, failure in enumerate(found, start=1):  # noqa: B007
        print(f"{what} {failure.case}: {failure.how}", flush=True)
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("files", 0), ("arrays", 0), ("calls", 0), ("seed", 0), ("first", 0), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sanitized", action="store_true")
    chosen = parser.parse_args()
    if chosen.sanitized and "LD_PRELOAD" not in os.environ:
        return subprocess.call([sys.executable, "-m", "tests.hostile.run", *sys.argv[1:]], env=sanitized_environment())
    start = time.perf_counter()
    attack = Attack(chosen.seed, chosen.first, chosen.sanitized, chosen.workers)
    failed = _told("file", attack.on_files(chosen.files)) if chosen.files else 0
    failed += _told("array", attack.on_arrays(chosen.arrays)) if chosen.arrays else 0
    failed += _told("call", attack.on_calls(chosen.calls)) if chosen.calls else 0
    print(
        f"hostile: {chosen.files} files, {chosen.arrays} arrays, {chosen.calls} calls from {chosen.first} on,"
        f" seed {chosen.seed}"
        f"{', sanitized' if chosen.sanitized else ''}: {failed} failures in {time.perf_counter() - start:.0f} s"
        f" (torch {torch.__version__}, Python {platform.python_version()})",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
