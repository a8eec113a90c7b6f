"""What the fuzzer found stays mended."""

from functools import cache

import pytest

from precast.cache import open_store
from precast.options import as_options
from tests.fuzz.found import FOUND
from tests.fuzz.trials import Case, run_cases

MODES = ("inference", "frozen", "training", "package")


PARTS = 3


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """For a part of the programs, which are built together: the verdicts of each that are failures."""

    @cache
    def of_part(part):
        names = list(FOUND)[part::PARTS]
        cases = [Case(seed, FOUND[name], MODES) for seed, name in enumerate(names)]
        failures: dict[str, list[str]] = {name: [] for name in names}
        folder, store = tmp_path_factory.mktemp("found"), open_store(as_options(None))
        for report in run_cases(cases, folder, flags=("-O1",), store=store):
            if report.verdict is not None and report.verdict.is_failure:
                described = f"{report.mode}, {report.stage}: {report.verdict.kind}: {report.verdict.detail}"
                failures[names[report.case]].append(described)
        return failures

    return of_part


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=pytest.mark.slow if part else ())
        for part in range(PARTS)
        for name in list(FOUND)[part::PARTS]
    ],
)
def test_what_was_found_does_what_eager_does(verdicts, name, part):
    assert not verdicts(part)[name], FOUND[name].text()
