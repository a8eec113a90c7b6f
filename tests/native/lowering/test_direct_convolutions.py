"""Convolutions of few pixels by many filters that are no constants, against eager and float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import check_case, floats, open_cases


def between(finish=lambda image, _: image, convolve=F.conv2d, **geometry):
    """What lies between the convolutions is channels last, and ours to choose."""

    def function(x, enter, w, scale, shift):
        image = convolve(x, enter)
        ones = (1,) * (x.ndim - 2)
        return finish(convolve(image, w, **geometry) * scale.view(-1, *ones) + shift.view(-1, *ones), image).sin()

    return function


def operands(*space, outputs=130, depth=64, kernel=(3, 3), batch=1):
    ones = (1,) * len(space)
    shapes = (batch, 3, *space), (depth, 3, *ones), (outputs, depth, *kernel), (outputs,), (outputs,)
    x, enter, w, scale, shift = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    return [x, enter, w / 64, scale, shift]


def wide(*shape):
    """Filters whose channels lie side by side."""
    x, enter, w, *others = operands(*shape)
    return [x, enter, w.to(memory_format=torch.channels_last), *others]


CASES = {
    **{f"padding_{padding}": (between(padding=padding), operands(7, 7)) for padding in (0, 1, 3)},
    **{f"stride_{stride}": (between(stride=stride, padding=1), operands(12, 13)) for stride in (2, 3)},
    "dilated": (between(dilation=2, padding=2), operands(6, 9)),
    "oblong": (between(stride=(2, 1), padding=(0, 2), dilation=(1, 2)), operands(9, 8, kernel=(2, 3))),
    "seven_pixels": (between(), operands(1, 7, outputs=520, kernel=(1, 1))),
    "one_pixel": (between(), operands(3, 3)),
    "few_pixels": (between(padding=1), operands(2, 2)),
    "one_pixel_filters": (between(), operands(7, 7, outputs=520, kernel=(1, 1))),
    "one_pixel_filters_apart": (between(stride=2), operands(14, 13, outputs=520, kernel=(1, 1))),
    "many_depths": (between(padding=1), operands(4, 4, outputs=40, depth=203)),
    "long_depth": (between(), operands(3, 3, outputs=40, depth=1500, kernel=(1, 1))),
    "one_output_too_many": (between(), operands(3, 3, outputs=65, depth=520, kernel=(1, 1))),
    "batches": (between(padding=1), operands(5, 5, batch=3)),
    "filters_lie_channels_last": (between(padding=1), wide(7, 7)),
    "row_major": (lambda x, w: F.conv2d(x, w, stride=16).sin(), [floats(1, 3, 64, 64), floats(50, 3, 16, 16, seed=1)]),
    "one_dimension": (between(convolve=F.conv1d, padding=2, stride=2), operands(33, kernel=(5,), outputs=120)),
    "three_dimensions": (between(convolve=F.conv3d, padding=1), operands(3, 4, 5, kernel=(2, 3, 3), outputs=50)),
    "relu6": (between(lambda value, _: F.relu6(value), padding=1), operands(7, 7)),
    "silu": (between(lambda value, _: F.silu(value), padding=1), operands(7, 7)),
    "residual": (between(lambda value, image: F.relu(value + image), padding=1), operands(7, 7, outputs=64)),
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
    x[0, 0, 0, 4] = value
    torch.testing.assert_close(model["relu6"](x, *others)[0], function(x, *others), equal_nan=True)
