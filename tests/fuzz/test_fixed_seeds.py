"""Random programs that look like models do what eager does; ``make fuzz`` tries others."""

import shutil

import pytest

from precast.cache import open_store
from precast.options import as_options
from tests.fuzz.generate import random_program
from tests.fuzz.trials import Case, modes_for, run_cases
from tests.fuzz.workers import Build, Worker, try_all
from tests.native.cpu.sanitizers import FLAGS


def cases(seeds):
    return [Case(seed, random_program(seed), modes_for(seed)) for seed in seeds]


def described(case, report):
    return f"seed {case.seed}, {report.mode}, {report.stage}: {report.verdict.kind}: {report.verdict.detail}"


def failures(tried, reports):
    return [
        described(tried[each.case], each) for each in reports if each.verdict is not None and each.verdict.is_failure
    ]


@pytest.mark.parametrize("start", [40, *(pytest.param(at, marks=pytest.mark.slow) for at in range(65, 240, 25))])
def test_loops_compute_what_eager_computes(tmp_path, start):
    tried = cases(range(start, start + 25))
    assert not failures(tried, run_cases(tried, tmp_path, stages=("loops",)))


LATER = [range(10, 40), *(range(start, start + 40) for start in range(240, 1080, 40))]


@pytest.mark.parametrize(
    "seeds", [range(10), *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in LATER)], ids=str
)
def test_machine_code_computes_what_eager_computes(tmp_path, seeds):
    tried = cases(seeds)
    # What is called by many programs was built by other tests, with the same flags.
    assert not failures(tried, run_cases(tried, tmp_path, flags=(), store=open_store(as_options(None))))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers' libraries are found by g++")
def test_machine_code_keeps_to_its_memory(tmp_path):
    worker = Worker(tmp_path, Build(FLAGS))
    try:
        found = [each for start in range(1080, 1400, 40) for each in try_all(worker, cases(range(start, start + 40)))]
    finally:
        worker.stop()
    assert not [described(case, report) for case, report in found if report.verdict.is_failure]
