"""NaN among the largest, the smallest and what is sorted; other functions at which NaN and infinity are special."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from precast.onnx import export
from precast.trace.capture import Dim

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
BOUNDARIES = torch.tensor([-1.0, 0.0, 1.0])


def with_nan() -> torch.Tensor:
    x = X.clone()
    x[0, 2] = x[1, 0] = x[2, 5] = x[2, 1] = math.nan
    x[1, 3], x[0, 4] = math.inf, -math.inf
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), x.amax((0, 1), keepdim=True)),
        lambda x: (x.max(1), x.min(1, keepdim=True)),
        lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.argmin(keepdim=True)),
        lambda x: (x.topk(3, 1), x.topk(3, 1, largest=False)),
        lambda x: (x.sort(1), x.sort(1, descending=True).values, x.msort(), torch.sort(x, dim=0, stable=True)),
        lambda x: (x.median(1), x.median(), x.nanmedian(1), x.kthvalue(2, 1)),
        lambda x: (x.norm(torch.inf, 1), x.norm(-torch.inf), torch.linalg.vector_norm(x, torch.inf, (0, 1))),
        lambda x: functional.adaptive_max_pool1d(x[None], 3, return_indices=True),
        lambda x: (torch.searchsorted(BOUNDARIES, x), torch.bucketize(x, BOUNDARIES, right=True)),
        lambda x: (x.sign(), x.angle(), torch.heaviside(x, x.new_tensor(0.5))),
        lambda x: functional.logsigmoid(x * 200),
    ],
)
def test_nan_counts_as_in_torch(function):
    program = export(function, (X,))
    for x in (X, with_nan()):
        expected = torch.utils._pytree.tree_leaves(function(x))
        torch.testing.assert_close(program(x), tuple(expected), equal_nan=True)


def test_truth_values_are_ordered():
    x = X > 0
    program = export(lambda x: (x.amax(1), x.any(), torch.sort(x, dim=1, stable=True).values), (x,))
    torch.testing.assert_close(program(x), (x.amax(1), x.any(), torch.sort(x, dim=1, stable=True).values))


@pytest.mark.parametrize("size", [(7, 8), (8, 8), (9, 6)])
def test_average_pooling_with_a_divisor_rounded_up(size):
    model = nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5)
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(export(model, (x,))(x)[0], model(x))


@pytest.mark.thinned
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_smooth_resizing(mode, align_corners):
    def resize(x):
        return functional.interpolate(x, size=(4, 11), mode=mode, antialias=True, align_corners=align_corners)

    x = torch.randn(2, 3, 6, 8)
    torch.testing.assert_close(export(resize, (x,))(x)[0], resize(x), rtol=1e-4, atol=1e-5)


EXTREME = torch.tensor([-1e-10, 1e-10, -1e-6, 1e-6, 0.005, 0.5, -0.5, 3.0, 100.0, -100.0, 1e10, math.inf, 0.0])


@pytest.mark.thinned
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.logaddexp(x, x.flip(0)),
        lambda x: torch.logaddexp2(x, -x),
        lambda x: torch.hypot(x * 1e20, x * 1e20),
        lambda x: torch.hypot(x, x.flip(0)),
        lambda x: torch.log1p(x.abs()),
        torch.expm1,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_and_large_arguments_keep_their_digits(function, dtype):
    x = EXTREME.to(dtype)
    torch.testing.assert_close(export(function, (x,))(x)[0], function(x), rtol=1e-4, atol=0, equal_nan=True)


def test_any_of_no_elements():
    program = export(lambda x: (x.any(), x.any(0), (x > 0).all()), (X,), dynamic_shapes=({0: Dim("rows", min=0)},))
    for x in (X, torch.zeros(0, 6)):
        torch.testing.assert_close(program(x), (x.any(), x.any(0), (x > 0).all()))
