"""Random programs against eager, for a while: ``python -m tests.fuzz --seconds 60 [--seed 0] [--sanitize]``.

What fails is shrunk, printed as a script, and kept in the folder of results. That folder also has a line for each batch
that was tried: with ``--resume``, the same call goes on where it ended, and sums up all.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.fuzz.generate import random_program
from tests.fuzz.judge import Verdict
from tests.fuzz.scripts import script
from tests.fuzz.shrink import shrink
from tests.fuzz.trials import Case, Report, modes_for
from tests.fuzz.workers import Build, Failure, Worker, first_failure, try_all
from tests.native.cpu.sanitizers import FLAGS

BATCH = 40
ENOUGH = 3
"""How many failures that read alike are shrunk; of the others, the seeds are told."""
SHRINKING = 120
"""Trials that shrinking one failure may take."""


@dataclass(frozen=True)
class Limits:
    """When enough was tried."""

    seconds: float
    programs: int


def batches_from(seed: int, limits: Limits, done: Collection[range] = ()) -> Iterator[range]:
    """Seeds to be tried together, for as long as there is time, and programs are wanted."""
    end, last = time.monotonic() + limits.seconds, seed + limits.programs
    while seed < last and time.monotonic() < end:
        batch = range(seed, min(seed + BATCH, last))
        if batch not in done:
            yield batch
        seed += BATCH


def cases_of(seeds: range) -> list[Case]:
    return [Case(each, random_program(each), modes_for(each)) for each in seeds]


def shrunk(failure: Failure, folder: Path, build: Build) -> Failure:
    """The smallest program that fails in the same mode with the same verdict."""
    stages = ("loops",) if failure.stage == "loops" else build.stages
    worker = Worker(folder, replace(build, stages=stages))

    def fails(program: object) -> bool:
        found = first_failure(worker, Case(failure.seed, program, (failure.mode,)))  # type: ignore[arg-type]
        return found is not None and (found.verdict.kind, found.mode) == (failure.verdict.kind, failure.mode)

    try:
        small = shrink(failure.program, fails, trials=SHRINKING)
    finally:
        worker.stop()
    return replace(failure, program=small)


class Tally:
    """What several workers have found, also in runs before this one: said as it is found, written batch by batch."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        self.lock, self.path = threading.Lock(), folder / "batches.jsonl"
        self.counts, self.failed = collections.Counter[str](), dict[int, Failure]()
        self.done = set[range]()
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            self.path.unlink(missing_ok=True)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            record = json.loads(line)
            self.done.add(range(record["first"], record["end"]))
            self.counts.update(record["counts"])
            for each in record["failures"]:
                verdict = Verdict(**each.pop("verdict"))
                self.failed[each["seed"]] = Failure(**each, program=random_program(each["seed"]), verdict=verdict)

    @property
    def programs(self) -> int:
        return sum(map(len, self.done))

    def add_batch(self, seeds: range, reports: Iterator[tuple[Case, Report]]) -> None:
        counts, failed = collections.Counter[str](), dict[int, Failure]()
        for case, report in reports:
            assert report.verdict is not None
            counts[f"{report.mode} {report.stage}: {report.verdict.kind}"] += 1
            if report.verdict.is_failure and case.seed not in failed:
                failed[case.seed] = Failure(case.seed, case.program, report.mode, report.stage, report.verdict)
                where = f"seed {case.seed}, {report.mode}, {report.stage}"
                print(f"{where}: {report.verdict.kind}: {report.verdict.detail}", flush=True)
        with self.lock, self.path.open("a") as file:
            record = {
                "first": seeds.start,
                "end": seeds.stop,
                "counts": counts,
                "failures": list(map(_told, failed.values())),
            }
            file.write(json.dumps(record) + "\n")
            self.done.add(seeds)
            self.counts += counts
            self.failed |= failed
            print(f"… {self.programs} programs, {len(self.failed)} failed", file=sys.stderr, flush=True)


def _told(failure: Failure) -> dict[str, object]:
    """A failure without its program, which its seed makes again."""
    return {name: value for name, value in asdict(failure).items() if name != "program"}


def run_batches(batches: Iterator[range], tally: Tally, folder: Path, build: Build) -> None:
    """Try batches until there are no more: one worker of several that take from the same."""
    folder.mkdir()
    worker = Worker(folder, build)
    try:
        while True:
            with tally.lock:
                seeds = next(batches, None)
            if seeds is None:
                return
            tally.add_batch(seeds, try_all(worker, cases_of(seeds)))
    finally:
        worker.stop()


def fuzz(limits: Limits, seed: int, build: Build, results: Path, tally: Tally, *, jobs: int, shrinks: bool) -> int:
    """Returns how many programs failed."""
    alike = collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="precast-fuzz-") as name:
        scratch = Path(name)
        build = replace(build, shared=scratch)
        batches = batches_from(seed, limits, tally.done)
        with ThreadPoolExecutor(jobs) as pool:
            for done in [
                pool.submit(run_batches, batches, tally, scratch / f"worker_{number}", build) for number in range(jobs)
            ]:
                done.result()
        for failure in tally.failed.values() if shrinks else ():
            kind = f"{failure.verdict.kind} {failure.verdict.detail[:30]}"
            alike[kind] += 1
            if alike[kind] <= ENOUGH:
                small = shrunk(failure, scratch, build)
                text = script(small)
                (results / f"seed_{failure.seed}.py").write_text(text)
                print(f"\n# seed {failure.seed}\n{text}\n# for found.py: {small.program!r}", flush=True)
    for what, count in sorted(tally.counts.items()):
        print(f"{count:7d}  {what}")
    for each in tally.failed.values():
        print(f"seed {each.seed}, {each.mode}, {each.stage}: {each.verdict.kind}: {each.verdict.detail}")
    print(f"{tally.programs} programs, {len(tally.failed)} failed")
    return len(tally.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--programs", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--sanitize", action="store_true", help="watch the memory of machine code")
    parser.add_argument("--loops", action="store_true", help="interpret loops only: build nothing")
    parser.add_argument("--shipped", action="store_true", help="compile with all the effort that users get")
    parser.add_argument("--keep", action="store_true", help="shrink nothing")
    parser.add_argument("--results", type=Path, default=Path(".fuzz"))
    parser.add_argument("--resume", action="store_true", help="try what the folder of results has no line about")
    chosen = parser.parse_args()
    flags = FLAGS if chosen.sanitize else () if chosen.shipped else ("-O1",)
    build = Build(flags, ("loops",) if chosen.loops else ("loops", "code"))
    limits = Limits(chosen.seconds, chosen.programs)
    tally = Tally(chosen.results, resume=chosen.resume)
    failed = fuzz(limits, chosen.seed, build, chosen.results, tally, jobs=chosen.jobs, shrinks=not chosen.keep)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
