"""Torch's own operator database through native code: values and gradients as good as eager's."""

from unittest.mock import patch

import pytest
import torch

from tests.native.operators.op_samples import GAPS, NAMES, Case, cases, failures, operators_not_native

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
QUICK = [name for name in NAMES[::12] if name not in GAPS["operator"]]
PARTS = 60
ALL = 10_000
# The type besides float32 in which an operator is tried: the first that it has.
OTHER_TYPES = (torch.int64, torch.bfloat16, torch.float64, torch.bool)


def other_type(name: str) -> torch.dtype:
    return next((dtype for dtype in OTHER_TYPES if cases([name], [dtype], count=1)), torch.float32)


def told(found: dict[Case, str]) -> str:
    return "\n".join(f"{case.name} {case.dtype} sample {case.number}: {what}" for case, what in found.items())


def test_one_sample_of_some(tmp_path):
    found = failures(cases(QUICK, [torch.float32], count=1), tmp_path)
    assert not found, told(found)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """One folder for all parts: routines that many operators call are compiled once."""
    return tmp_path_factory.mktemp("libraries")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_samples(part: int, libraries):
    names = [name for name in NAMES[part::PARTS] if name not in GAPS["operator"]]
    selected = cases(names, [torch.float32], count=ALL)
    for name in names:
        selected |= cases([name], [other_type(name)], count=ALL)
    found = failures(selected, libraries)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS["operator"])
def test_gap_is_still_there(name: str, tmp_path):
    assert failures(cases([name], [torch.float32, *OTHER_TYPES], count=8), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS["layout"])
def test_gap_of_layout_is_still_there(name: str, tmp_path):
    with patch.dict(GAPS, layout={}):
        assert failures(cases([name], [torch.float32], count=ALL), tmp_path)


@pytest.mark.slow
def test_the_share_of_operators_that_run_natively(assert_golden):
    """Which operators call torch, forward or backward, is written down: the list is to shrink."""
    missing: dict[str, set[str]] = {}
    for name in NAMES:
        # One by one: so many graphs at once would keep the garbage collector busy.
        missing |= operators_not_native(cases([name], [torch.float32], count=2))
    native = [name for name, left in missing.items() if not left]
    lines = [f"{len(native)} of {len(missing)} operators run natively, forward and backward, without calling torch", ""]
    lines += [f"{name}: {', '.join(sorted(left))}" for name, left in sorted(missing.items()) if left]
    print(lines[0])
    assert_golden("native_share", "\n".join(lines))
