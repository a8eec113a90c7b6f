"""What the fuzzer found stays mended."""

import pytest

from precast.cache import open_store
from precast.options import as_options
from tests.fuzz.found import FOUND
from tests.fuzz.trials import Case, run_cases

MODES = ("inference", "frozen", "training", "package")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """All programs are built together: the verdicts of each that are failures."""
    cases = [Case(seed, program, MODES) for seed, program in enumerate(FOUND.values())]
    failures: dict[str, list[str]] = {name: [] for name in FOUND}
    names = list(FOUND)
    for report in run_cases(
        cases, tmp_path_factory.mktemp("found"), flags=("-O1",), store=open_store(as_options(None))
    ):
        if report.verdict is not None and report.verdict.is_failure:
            told = f"{report.mode}, {report.stage}: {report.verdict.kind}: {report.verdict.detail}"
            failures[names[report.case]].append(told)
    return failures


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_does_what_eager_does(verdicts, name):
    assert not verdicts[name], FOUND[name].text()
