"""Capture, functionalize and interpret every operator that torch tests, out of place and in place, against eager."""

from collections.abc import Callable, Iterable

import pytest
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.trace.capture.op_samples import (
    GAPS,
    IN_PLACE_OPS,
    OPS,
    assert_captured_in_place_like_eager,
    assert_captured_like_eager,
    samples_of,
)

QUICK_EVERY = 12
SAMPLES = 20


def cases(names: Iterable[str]) -> list[object]:
    """Every op's name; all but one in ``QUICK_EVERY`` are for the slow tier."""
    return [
        pytest.param(name, SAMPLES if slow else 1, marks=pytest.mark.slow if slow else ())
        for number, name in enumerate(names)
        for slow in ([True] if number % QUICK_EVERY else [False, True])
    ]


def sweep(check: Callable[[OpInfo, SampleInput], None], op: OpInfo, count: int, gap: str | None) -> None:
    def run() -> None:
        for sample in samples_of(op, count=SAMPLES if gap else count):
            check(op, sample)

    if gap is None:
        run()
    else:
        with pytest.raises(RuntimeError):
            run()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "count"), cases(OPS))
def test_operator(name: str, count: int):
    sweep(assert_captured_like_eager, OPS[name], count, GAPS["operator"].get(name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "count"), cases(IN_PLACE_OPS))
def test_operator_in_place(name: str, count: int):
    sweep(assert_captured_in_place_like_eager, IN_PLACE_OPS[name], count, GAPS["in_place"].get(name))


def test_gaps_name_operators_and_reasons():
    assert GAPS["operator"].keys() <= OPS.keys()
    assert GAPS["in_place"].keys() <= IN_PLACE_OPS.keys()
    assert all(reason for gaps in GAPS.values() for reason in gaps.values())
