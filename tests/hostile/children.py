"""Many cases in child processes, with limits: those that crash, hang or take too much memory are told by number."""

import mmap
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

_CASES_A_CHILD = 500


class Failure(NamedTuple):
    """A case that did not end as it should, and how."""

    case: int
    how: str


def failures(
    run: Callable[[int], None], cases: range, *, seconds: int, gigabytes: float | None, silent: bool = True
) -> Iterator[Failure]:
    """Run all cases; each may take so many seconds of the processor, and all of a child so much more memory."""
    at = mmap.mmap(-1, 8)
    start = cases.start
    while start < cases.stop:
        stop = min(start + _CASES_A_CHILD, cases.stop)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(run, range(start, stop), at, writer, seconds=seconds, gigabytes=gigabytes, silent=silent)
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            text = told.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
        for line in filter(None, text.split("\0")):
            case, _, how = line.partition(" ")
            yield Failure(int(case), how)
        code = os.waitstatus_to_exitcode(status)
        start = stop
        if code != 0:
            (case,) = struct.unpack("<q", at[:8])
            yield Failure(case, "took too long" if code == -signal.SIGPROF else f"ended its process: {code}")
            start = case + 1


def _work(
    run: Callable[[int], None],
    cases: range,
    at: mmap.mmap,
    writer: int,
    *,
    seconds: int,
    gigabytes: float | None,
    silent: bool,
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if gigabytes is not None:
        limit = _mapped_bytes() + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for case in cases:
        at[:8] = struct.pack("<q", case)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            run(case)
        except BaseException as problem:  # noqa: BLE001
            where = traceback.extract_tb(problem.__traceback__)[-1]
            text = f"{case} {type(problem).__name__}: {str(problem)[:300]} at {where.filename}:{where.lineno}\0"
            os.write(writer, text.encode(errors="replace"))
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.flush()
    os._exit(0)


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE
