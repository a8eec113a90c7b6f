"""Judge every architecture in every mode, each in a process of its own: ``python -m tests.models.sweep``.

Results are appended to a file of JSON lines as they come, so that a sweep goes on where it ended; the last line about a
model and a mode counts. ``--table`` writes ``docs/architectures.md`` from them.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from tests.models.architecture_page import page_of
from tests.models.architectures import architecture_names, make_architecture
from tests.models.examples import Example
from tests.models.judging import MODES, Verdict, judge

MEMORY_BYTES = 12 * 2**30
LIMIT_SECONDS = 300
RESULTS = Path(".architectures.jsonl")


def judge_in_child(make: Callable[[], Example], mode: str, *, limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """The verdict from a new process; its death, or too long a life, is a verdict too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.models.preloaded"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_verdict, args=(theirs, make, mode))
    process.start()
    theirs.close()
    has_answered = ours.poll(limit_seconds)
    try:
        verdict = ours.recv() if has_answered else Verdict("slow", f"more than {limit_seconds:.0f} s", limit_seconds)
    except EOFError:
        process.join()
        verdict = Verdict("crashed", f"exit status {process.exitcode}")
    if not has_answered:
        # The child leads a group of its own: a C++ compiler that it started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return verdict


def _send_verdict(connection: Connection, make: Callable[[], Example], mode: str) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    connection.send(judge(make, mode))
    connection.close()


def read_results(path: Path) -> dict[tuple[str, str], Verdict]:
    """The last verdict about each model in each mode."""
    results = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        key = record.pop("name"), record.pop("mode")
        results[key] = Verdict(**record)
    return results


def sweep(names: Iterable[str], modes: Iterable[str], path: Path, *, again: Iterable[str] = (), jobs: int = 1) -> None:
    """Judge what the file has no verdict about, or one of those ``again`` names; one mode after the other."""
    again = set(again)
    names = list(names)
    writing = threading.Lock()

    def judge_one(name: str, mode: str) -> None:
        verdict = judge_in_child(functools.partial(make_architecture, name), mode)
        told = time.strftime("%H:%M:%S"), mode, name, verdict.status, verdict.seconds, verdict.reason[:200]
        with writing, path.open("a") as file:
            file.write(json.dumps({"name": name, "mode": mode, **asdict(verdict)}) + "\n")
            print(*told, flush=True)

    for mode in modes:
        results = read_results(path)
        unknown = Verdict("")
        wanted = [
            name
            for name in names
            if results.get((name, mode), unknown).status in {"", *again}
            and (mode == "forward" or results.get((name, "forward"), unknown).status != "not judged")
        ]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(judge_one, wanted, itertools.repeat(mode)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="models whose names hold one of these words, parted by commas")
    parser.add_argument("--again", default="", help="verdicts that are not to be kept, parted by commas")
    parser.add_argument("--table", type=Path, help="write the page of results there, and judge nothing")
    parser.add_argument("--jobs", type=int, default=1, help="how many models are judged at a time")
    arguments = parser.parse_args()
    words = arguments.only.split(",")
    names = [name for name in architecture_names() if any(word in name for word in words)]
    if arguments.table:
        arguments.table.write_text(page_of(read_results(arguments.results), names))
    else:
        sweep(
            names, arguments.modes.split(","), arguments.results, again=arguments.again.split(","), jobs=arguments.jobs
        )


if __name__ == "__main__":
    main()
