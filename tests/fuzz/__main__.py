"""Random programs against eager, for a while: ``python -m tests.fuzz --seconds 60 [--seed 0] [--sanitize]``.

What fails is shrunk, printed as a script, and kept in the folder ``.fuzz``.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.codegen.sanitizers import FLAGS
from tests.fuzz.generate import random_program
from tests.fuzz.scripts import script
from tests.fuzz.shrink import shrink
from tests.fuzz.trials import Case, modes_for
from tests.fuzz.workers import Build, Failure, Worker, first_failure, try_all

BATCH = 40
ENOUGH = 3
"""How many failures that read alike are shrunk; of the others, the seeds are told."""
SHRINKING = 120
"""Trials that shrinking one failure may take."""


def cases_from(seed: int) -> Iterator[list[Case]]:
    while True:
        yield [Case(each, random_program(each), modes_for(each)) for each in range(seed, seed + BATCH)]
        seed += BATCH


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


def fuzz(seconds: float, seed: int, build: Build, results: Path, *, shrinks: bool) -> int:
    """Returns how many programs failed."""
    end, counts, failed = time.monotonic() + seconds, collections.Counter[str](), dict[int, Failure]()
    alike = collections.Counter[str]()
    programs = 0
    with tempfile.TemporaryDirectory(prefix="precast-fuzz-") as scratch:
        worker = Worker(Path(scratch), build)
        for cases in cases_from(seed):
            for case, report in try_all(worker, cases):
                assert report.verdict is not None
                counts[f"{report.mode} {report.stage}: {report.verdict.kind}"] += 1
                if report.verdict.is_failure and case.seed not in failed:
                    failed[case.seed] = Failure(case.seed, case.program, report.mode, report.stage, report.verdict)
                    where = f"seed {case.seed}, {report.mode}, {report.stage}"
                    print(f"{where}: {report.verdict.kind}: {report.verdict.detail}", flush=True)
            programs += len(cases)
            print(f"… {programs} programs, {len(failed)} failed", file=sys.stderr, flush=True)
            if time.monotonic() > end:
                break
        worker.stop()
        for failure in failed.values() if shrinks else ():
            kind = f"{failure.verdict.kind} {failure.verdict.detail[:30]}"
            alike[kind] += 1
            if alike[kind] <= ENOUGH:
                small = shrunk(failure, Path(scratch), build)
                text = script(small)
                results.mkdir(parents=True, exist_ok=True)
                (results / f"seed_{failure.seed}.py").write_text(text)
                print(f"\n# seed {failure.seed}\n{text}\n# for found.py: {small.program!r}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:7d}  {what}")
    print(f"{programs} programs from seed {seed} on, {len(failed)} failed")
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--sanitize", action="store_true", help="watch the memory of machine code")
    parser.add_argument("--loops", action="store_true", help="interpret loops only: build nothing")
    parser.add_argument("--shipped", action="store_true", help="compile with all the effort that users get")
    parser.add_argument("--keep", action="store_true", help="shrink nothing")
    parser.add_argument("--results", type=Path, default=Path(".fuzz"))
    chosen = parser.parse_args()
    flags = FLAGS if chosen.sanitize else () if chosen.shipped else ("-O1",)
    build = Build(flags, ("loops",) if chosen.loops else ("loops", "code"))
    failed = fuzz(chosen.seconds, chosen.seed, build, chosen.results, shrinks=not chosen.keep)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
