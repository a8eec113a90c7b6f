"""Torch's own operator database with operands of other types: refused where eager refuses, else as good as eager."""

import pytest

from tests.native.operators.mixed_types import GAPS, QUICK, Findings, cases, findings
from tests.native.operators.op_samples import NAMES

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
PARTS = 30


def assert_like_eager(found: Findings) -> None:
    unexpected = {case: text for case, text in found.refused.items() if case.name not in GAPS["refused"]}
    told = [f"wrong: {case}: {text}" for case, text in found.wrong.items()]
    told += [f"refused: {case}: {text}" for case, text in unexpected.items()]
    assert not told, "\n".join(told)


def test_some_operators(tmp_path):
    assert_like_eager(findings(cases(QUICK, count=1), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators(part: int, tmp_path):
    assert_like_eager(findings(cases(NAMES[part::PARTS], count=4), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS["refused"])
def test_gap_is_still_there(name: str, tmp_path):
    assert findings(cases([name], count=4), tmp_path).refused
