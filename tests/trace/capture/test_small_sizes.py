"""Torch's own operator database at the sizes at which programs take special paths."""

import pytest

from tests.trace.capture.small_sizes import NAMES, captured, decomposed, findings

pytestmark = pytest.mark.filterwarnings("ignore")
PARTS = 10


@pytest.mark.parametrize("made", [captured, decomposed])
def test_some_operators_of_nothing_and_of_one(made):
    assert not list(findings(NAMES[7::120], made))


@pytest.mark.slow
@pytest.mark.parametrize("made", [captured, decomposed])
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators_of_nothing_and_of_one(part: int, made):
    assert not list(findings(NAMES[part::PARTS], made))
