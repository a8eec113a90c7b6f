"""Activations that a product or a convolution applies itself, of numbers where they could differ from eager's."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import ACTIVATIONS, floats, open_cases

NUMBERS = (0.0, 1.0, -1.0, -1e-30, 1e-45, -3.0, -1000.0, 100.0, 1e20, -1e20, 3e38, -3e38, math.inf, -math.inf)
# Eager's hardswish multiplies by 6 first.
UNSURE = {"hardswish": (3e38,)}
PRODUCTS = {
    "product": (lambda x, w: x @ w, (), (1, 16)),
    "batches": (lambda x, w: torch.bmm(x.expand(2, -1, -1), w.expand(2, -1, -1)), (), (1, 16)),
    "linear": (lambda x, w: F.linear(x, w, torch.zeros(16, dtype=x.dtype)), (), (16, 1)),
    "convolution": (lambda x, w: F.conv2d(x, w), (1, 1), (16, 1, 1, 1)),
    "depthwise": (lambda x, w: F.conv2d(x.repeat(1, 16, 3, 4), w / 9, groups=16), (1, 1), (16, 1, 3, 3)),
    "groups": (lambda x, w: F.conv2d(x.repeat(1, 4, 5, 5), w, groups=4), (1, 1), (48, 1, 1, 1)),
}


def case(activation, product, dtype, *others):
    function, more, filters = PRODUCTS[product]
    numbers = [each for each in NUMBERS if each not in UNSURE.get(activation, ())]
    column = torch.tensor([*numbers, *others]).reshape(-1, 1, *more).to(dtype)
    return lambda x, w: ACTIVATIONS[activation](function(x, w)), [column, torch.ones(filters, dtype=dtype)]


CASES = {
    f"{activation}_{product}_{str(dtype)[6:]}_{len(others)}": case(activation, product, dtype, *others)
    for activation in ACTIVATIONS
    for product in PRODUCTS
    for dtype in (torch.float32, torch.bfloat16)
    for others in ((), (math.nan,))
    # oneDNN multiplies channels of other groups by 0 there, before any activation.
    if product not in ("groups", "depthwise") or dtype != torch.bfloat16
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_eager(model, name):
    function, inputs = CASES[name]
    ours, eager = model[name](*inputs)[0], function(*inputs)
    torch.testing.assert_close(
        ours, eager, equal_nan=True, rtol=1e-2 if ours.dtype == torch.bfloat16 else 2e-4, atol=1e-5
    )
    if name.startswith("relu"):
        assert torch.equal(ours.nan_to_num(), eager.nan_to_num())
        assert not ours[ours == 0].signbit().any()


@pytest.mark.parametrize("place", ["image", "residual"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_residual_is_added_once_where_a_convolution_starts_anew(tmp_path, place, value):
    images = [floats(1, 64, 28, 28, seed=seed).to(memory_format=torch.channels_last) for seed in range(2)]
    images[place == "residual"][0, 5, 11, 13] = value
    inputs = [images[0], floats(64, 64, 3, 3, seed=2), images[1]]

    def function(x, w, y):
        return F.relu(F.conv2d(x, w, padding=1) + y)

    (ours,) = open_cases({"f": (function, inputs)}, tmp_path)["f"](*inputs)
    torch.testing.assert_close(ours, function(*inputs), equal_nan=True, rtol=1e-4, atol=1e-4)
