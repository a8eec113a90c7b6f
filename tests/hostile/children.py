"""Many cases in child processes, with limits: those that crash, hang or take too much memory are told by number."""

import faulthandler
import mmap
import os
import resource
import selectors
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


class Limits(NamedTuple):
    """How many seconds of the processor a case may take, and how much memory beyond its parent's all of a child.

    A case that only waits is ended after `patience` times as many seconds: machines are busy.
    """

    seconds: int
    gigabytes: float | None
    is_silent: bool = True
    patience: int = 8


class _Child:
    """A process that runs some of the cases, one after another, and writes down at which it is."""

    def __init__(self, run: Callable[[int], None], cases: range, limits: Limits):
        self.cases, self.told = cases, bytearray()
        self._at = mmap.mmap(-1, 8)
        self.reader, writer = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self.reader)
            _work(run, cases, self._at, writer, limits)
        os.close(writer)

    def finish(self) -> tuple[list[Failure], range]:
        """What failed, and the cases that a crash has kept from running."""
        os.close(self.reader)
        _, status = os.waitpid(self._process, 0)
        lines = filter(None, self.told.decode(errors="replace").split("\0"))
        failed = [Failure(int(case), how) for case, _, how in (line.partition(" ") for line in lines)]
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return failed, range(0)
        (case,) = struct.unpack("<q", self._at[:8])
        how = "took too long" if code in (-signal.SIGPROF, -signal.SIGALRM) else f"ended its process: {code}"
        return [*failed, Failure(case, how)], range(case + 1, self.cases.stop)


def failures(run: Callable[[int], None], cases: range, limits: Limits, *, workers: int = 1) -> Iterator[Failure]:
    """Run all cases in so many processes at a time."""
    waiting = [cases[start : start + _CASES_A_CHILD] for start in range(0, len(cases), _CASES_A_CHILD)]
    with selectors.DefaultSelector() as running:
        while waiting or running.get_map():
            while waiting and len(running.get_map()) < workers:
                started = _Child(run, waiting.pop(0), limits)
                running.register(started.reader, selectors.EVENT_READ, started)
            for key, _ in running.select():
                child: _Child = key.data
                if told := os.read(child.reader, 65536):
                    child.told += told
                    continue
                running.unregister(child.reader)
                failed, rest = child.finish()
                yield from failed
                if rest:
                    waiting.insert(0, rest)


def _work(run: Callable[[int], None], cases: range, at: mmap.mmap, writer: int, limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Who waits for this process tells of its end, in a line in place of pages.
    faulthandler.disable()
    # Those who test us set alarms of their own.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if limits.gigabytes is not None:
        limit = _mapped_bytes() + int(limits.gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if limits.is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for case in cases:
        at[:8] = struct.pack("<q", case)
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        signal.setitimer(signal.ITIMER_REAL, limits.seconds * limits.patience)
        try:
            run(case)
        except BaseException as problem:  # noqa: BLE001
            where = traceback.extract_tb(problem.__traceback__)[-1]
            text = f"{case} {type(problem).__name__}: {str(problem)[:300]} at {where.filename}:{where.lineno}\0"
            os.write(writer, text.encode(errors="replace"))
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.flush()
    os._exit(0)


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE
