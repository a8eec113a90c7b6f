"""Torch's own operator database at the sizes at which programs take special paths."""

import pytest

from tests.capture.small_sizes import NAMES, findings

pytestmark = pytest.mark.filterwarnings("ignore")
PARTS = 10


def test_some_operators_of_nothing_and_of_one():
    assert not list(findings(NAMES[7::120]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators_of_nothing_and_of_one(part: int):
    assert not list(findings(NAMES[part::PARTS]))
