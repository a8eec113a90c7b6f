"""Hostile files and arrays by the thousand: ``python -m tests.hostile.run --files 100000 --arrays 10000``.

Every case is made from the seed and its number alone: ``--files 1 --first 4711`` runs that one again. With
``--sanitized``, arrays are given to code with address and undefined-behaviour sanitizers in it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.hostile.arrays import array_cases
from tests.hostile.children import Failure, failures
from tests.hostile.files import bases, run_file

SANITIZED = "g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
SECONDS, GIGABYTES = 20, 4.0


def attack_files(count: int, *, seed: int, first: int = 0) -> Iterator[Failure]:
    """The files that were not refused as they should be, nor used without harm."""
    bases()
    return failures(
        lambda case: run_file(seed, case), range(first, first + count), seconds=SECONDS, gigabytes=GIGABYTES
    )


def attack_arrays(count: int, *, seed: int, first: int = 0, is_sanitized: bool = False) -> Iterator[Failure]:
    """The arrays that gave other numbers than they hold, or worse."""
    run = array_cases(seed, compiler=SANITIZED if is_sanitized else None)
    # Sanitizers reserve more addresses than any limit would allow.
    memory = None if is_sanitized else GIGABYTES
    return failures(run, range(first, first + count), seconds=SECONDS, gigabytes=memory, silent=not is_sanitized)


def sanitized_environment() -> dict[str, str]:
    """What a process needs that loads code with sanitizers in it."""
    names = ("libasan.so", "libubsan.so")
    found = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    options = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096"
    return os.environ | {"LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": options}


def report(what: str, count: int, attack: Callable[[], Iterator[Failure]]) -> int:
    """Run, tell every failure, and give how many there were."""
    start, failed = time.perf_counter(), 0
    for failure in attack():
        failed += 1
        print(f"{what} {failure.case}: {failure.how}", flush=True)
    print(f"{count} {what}: {failed} failures in {time.perf_counter() - start:.0f} s", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("files", 0), ("arrays", 0), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sanitized", action="store_true")
    chosen = parser.parse_args()
    if chosen.sanitized and "LD_PRELOAD" not in os.environ:
        return subprocess.call([sys.executable, "-m", "tests.hostile.run", *sys.argv[1:]], env=sanitized_environment())
    failed = 0
    if chosen.files:
        failed += report(
            "files", chosen.files, lambda: attack_files(chosen.files, seed=chosen.seed, first=chosen.first)
        )
    if chosen.arrays:
        options = {"seed": chosen.seed, "first": chosen.first, "is_sanitized": chosen.sanitized}
        failed += report("arrays", chosen.arrays, lambda: attack_arrays(chosen.arrays, **options))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
