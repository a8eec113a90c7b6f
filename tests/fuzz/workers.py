"""Processes that try programs for us: they may crash or hang, and we go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.judge import Verdict
from tests.fuzz.programs import Program
from tests.fuzz.trials import STAGES, Case, Report, run_cases
from tests.native.cpu.sanitizers import FLAGS, environment

PATIENCE = 60
"""Seconds of processor time that one step may take; a build, whose length depends on how much there is, twice that and
more. The time on the clock says nothing on a machine that others use, too."""
ASLEEP = 180
"""Seconds on the clock after which a process that has hardly used its processor waits for what never comes."""
GLANCE = 5
SHOWN = 600
_STARTING = threading.Lock()
"""The environment, of which a process begins with a copy, is everybody's."""


@dataclass(frozen=True)
class Build:
    """How machine code is made: with which flags, and whether it watches its own memory."""

    flags: tuple[str, ...] = ("-O1",)
    stages: tuple[str, ...] = STAGES
    shared: Path | None = None
    """Where workers keep what others may use, too; each its own folder if there is none."""

    @property
    def is_sanitized(self) -> bool:
        return self.flags == FLAGS


class DiedError(Exception):
    """The process ended, or did not go on; `last` is what it was about to do."""

    def __init__(self, kind: str, last: Report | None, detail: str):
        super().__init__(kind)
        self.last, self.verdict = last, Verdict(kind, detail)


class Worker:
    """One process, started when it is needed, and again when it died."""

    def __init__(self, folder: Path, build: Build):
        self.folder, self.build = folder, build
        self.process: multiprocessing.process.BaseProcess | None = None
        self.errors = folder / f"errors-{os.getpid()}-{id(self)}.txt"

    def run(self, cases: Sequence[Case]) -> Iterator[Report]:
        """The reports of these cases, as they come."""
        self._start()
        self.connection.send((list(cases), self.build))
        last: Report | None = None
        while True:
            patience = PATIENCE * (2 + len(cases) / 4 if last is not None and last.stage == "build" else 1)
            why = self.why_silent(patience)
            if why:
                self.stop()
                raise DiedError("hang", last, why)
            try:
                report = self.connection.recv()
            except (EOFError, ConnectionResetError):
                assert self.process is not None
                self.process.join()
                code = self.process.exitcode
                self.stop()
                raise DiedError("crash", last, f"exit {code}: {_telling(self.errors)}") from None
            if report is None:
                return
            last = report
            yield report

    def why_silent(self, patience: float) -> str:
        """Wait for a report; returns why there will be none, if so."""
        assert self.process is not None
        assert self.process.pid is not None
        used, begin = processor_seconds(self.process.pid), time.monotonic()
        while not self.connection.poll(GLANCE):
            spent = processor_seconds(self.process.pid) - used
            if spent > patience:
                return f"nothing for {patience:.0f} s of processor time"
            if time.monotonic() - begin > ASLEEP and spent < ASLEEP / 200:
                return f"asleep for {ASLEEP} s"
        return ""

    def _start(self) -> None:
        if self.process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.folder, self.errors), daemon=True)
        with _STARTING:
            before = os.environ.copy()
            os.environ.update({"OMP_NUM_THREADS": "1"} | (environment() if self.build.is_sanitized else {}))
            try:
                self.process.start()
            finally:
                os.environ.clear()
                os.environ.update(before)
        theirs.close()

    def stop(self) -> None:
        if self.process is not None:
            # It leads a group of its own: a C++ compiler that it started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def processor_seconds(group: int) -> float:
    """What the processes of a group, and those that they have waited for, have used of their processors."""
    ticks = 0
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of a program, in parentheses, may hold anything.
            _, _, facts = each.read_text(errors="replace").rpartition(")")
            fields = facts.split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _telling(errors: Path) -> str:
    """What a process said at last; of a sanitizer, where it begins."""
    text = errors.read_text(errors="replace") if errors.exists() else ""
    begin = max(text.find("==ERROR"), text.find("runtime error"))
    return text[begin : begin + SHOWN] if begin >= 0 else text[-SHOWN:]


def _serve(connection: Connection, folder: Path, errors: Path) -> None:
    os.setpgid(0, 0)
    with errors.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    while True:
        try:
            cases, build = connection.recv()
        except EOFError:
            return
        for report in run_cases(cases, folder, flags=build.flags, stages=build.stages, shared=build.shared):
            connection.send(report)
        connection.send(None)


@dataclass(frozen=True)
class Failure:
    """A program that failed, where, and how."""

    seed: int
    program: Program
    mode: str
    stage: str
    verdict: Verdict


def try_all(worker: Worker, cases: Sequence[Case]) -> Iterator[tuple[Case, Report]]:
    """All reports with a verdict; where the process dies, the rest is tried in halves until one program is left."""
    try:
        for report in worker.run(cases):
            if report.verdict is not None:
                yield cases[report.case], report
    except DiedError as died:
        last = died.last or Report(0, "", "")
        if len(cases) == 1:
            yield cases[0], replace(last, verdict=died.verdict)
            return
        # It may have been hurt by an earlier program than the one that it died of.
        half, is_found = len(cases) // 2, False
        for part in (cases[:half], cases[half:]):
            for case, report in try_all(worker, part):
                is_found |= report.verdict is not None and report.verdict.kind == died.verdict.kind
                yield case, report
        if not is_found:
            told = f"with seeds {cases[0].seed} to {cases[-1].seed} in one process: {died.verdict.detail}"
            yield cases[last.case], replace(last, verdict=Verdict(died.verdict.kind, told))


def first_failure(worker: Worker, case: Case) -> Failure | None:
    """How a program fails first, if it does; it is tried to the end, so that the next one finds no reports of it."""
    failures = [
        Failure(found.seed, found.program, report.mode, report.stage, report.verdict)
        for found, report in try_all(worker, [case])
        if report.verdict is not None and report.verdict.is_failure
    ]
    return failures[0] if failures else None
