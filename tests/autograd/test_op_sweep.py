"""Torch's own operator database, compiled: values, gradients and gradients of gradients are eager's."""

import pytest
import torch

from tests.autograd.op_samples import (
    GAPS,
    OPS,
    assert_second_gradients_like_eager,
    assert_values_and_gradients_like_eager,
)

pytestmark = pytest.mark.filterwarnings("ignore")
ALL = [name for name in OPS if name not in GAPS["operator"]]
QUICK = ALL[::9]


@pytest.mark.parametrize("name", QUICK)
def test_one_sample(name: str):
    assert_values_and_gradients_like_eager(name, torch.float32, count=1)


@pytest.mark.parametrize("name", [name for name in QUICK[::2] if name not in GAPS["second_order"]])
def test_second_gradients_of_one_sample(name: str):
    assert_second_gradients_like_eager(name, count=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_samples(name: str, dtype: torch.dtype):
    assert_values_and_gradients_like_eager(name, dtype, count=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in GAPS["second_order"]])
def test_second_gradients(name: str):
    assert_second_gradients_like_eager(name, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS["operator"])
def test_gap_is_still_there(name: str):
    with pytest.raises((RuntimeError, AssertionError)):
        assert_values_and_gradients_like_eager(name, torch.float32, count=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS["second_order"])
def test_gap_of_second_order_is_still_there(name: str):
    with pytest.raises((RuntimeError, AssertionError)):
        assert_second_gradients_like_eager(name, count=2)
