"""Fixtures that every test may ask for."""

from collections.abc import Callable

import pytest

from tests.golden_files import assert_file_holds


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``assert_golden(name, text)``: the text equals ``golden/<name>.txt`` in the folder of the test that asks."""
    folder = request.path.parent / "golden"
    return lambda name, text: assert_file_holds(folder / f"{name}.txt", text)
