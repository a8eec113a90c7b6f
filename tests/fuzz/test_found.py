"""What the fuzzer found stays mended."""

import pytest

from precast.cache import open_store
from precast.options import as_options
from tests.fuzz.found import FOUND
from tests.fuzz.trials import Case, run_cases

MODES = ("inference", "frozen", "training", "package")


PARTS = 3


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """Every third program from the given one on, all built together: the verdicts of each that are failures."""
    names = list(FOUND)[request.param :: PARTS]
    cases = [Case(seed, FOUND[name], MODES) for seed, name in enumerate(names)]
    failures: dict[str, list[str]] = {name: [] for name in names}
    for report in run_cases(
        cases, tmp_path_factory.mktemp("found"), flags=("-O1",), store=open_store(as_options(None))
    ):
        if report.verdict is not None and report.verdict.is_failure:
            described = f"{report.mode}, {report.stage}: {report.verdict.kind}: {report.verdict.detail}"
            failures[names[report.case]].append(described)
    return failures


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        pytest.param(name, part, marks=pytest.mark.slow if part else ())
        for part in range(PARTS)
        for name in list(FOUND)[part::PARTS]
    ],
    indirect=["verdicts"],
)
def test_what_was_found_does_what_eager_does(verdicts, name):
    assert not verdicts[name], FOUND[name].text()
