"""Random programs that look like models, with kernels of all kinds of blocks; ``make fuzz-gpu`` tries others."""

import pytest

from tests.native.cuda.fuzz import failures
from tests.native.cuda.interpreted import InterpretedGpu


@pytest.mark.parametrize("start", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(10, 310, 30))])
def test_random_programs_are_right(start: int, tmp_path):
    count = 3 if start == 0 else 30
    assert not failures(range(start, start + count), InterpretedGpu(tmp_path), tmp_path)
