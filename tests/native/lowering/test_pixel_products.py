"""Convolutions by filters of one pixel that are no constants: products, where pixels are few."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import check_case, floats, open_cases


def between(finish=lambda image, _: image):
    """What lies between the convolutions is channels last, and ours to choose."""

    def function(x, enter, w, scale, shift):
        image = F.conv2d(x, enter)
        return finish(F.conv2d(image, w) * scale[:, None, None] + shift[:, None, None], image).sin()

    return function


def operands(height, width, outputs=50, depth=80, batch=1):
    shapes = (batch, 3, height, width), (depth, 3, 1, 1), (outputs, depth, 1, 1), (outputs,), (outputs,)
    return [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)]


CASES = {
    **{
        f"{height}_by_{width}": (between(), operands(height, width))
        for height, width in ((1, 1), (1, 2), (2, 3), (7, 7), (1, 9), (8, 8), (9, 8))
    },
    "batches": (between(), operands(5, 5, batch=2)),
    "relu6": (between(lambda value, _: F.relu6(value)), operands(7, 7)),
    "relu": (between(lambda value, _: F.relu(value)), operands(7, 7)),
    "silu": (between(lambda value, _: F.silu(value)), operands(7, 7)),
    "residual": (between(lambda value, image: F.relu(value + image)), operands(7, 7, outputs=80)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_computes_what_eager_does(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_goes_where_eager_takes_it(model, value):
    function, (x, *others) = CASES["relu6"]
    x = x.clone()
    x[0, 0, 3, 4] = value
    torch.testing.assert_close(model["relu6"](x, *others)[0], function(x, *others), equal_nan=True)
