"""Histograms, modes and runs of data of any length."""

import math

import pytest
import torch

from precast.onnx import export
from precast.trace.capture import Dim


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.histc(x, 5),
        lambda x: torch.histc(x, 5, min=-1, max=1),
        lambda x: tuple(torch.mode(x)),
        lambda x: torch.unique_consecutive(x.round(), return_inverse=True, return_counts=True),
        lambda x: torch.nanmedian(x),
    ],
)
def test_any_length(function):
    torch.manual_seed(0)
    program = export(function, (torch.randn(8),), dynamic_shapes=({0: Dim("n", min=2)},))
    for count in (8, 21):
        x = torch.randn(count)
        torch.testing.assert_close(program.call_as_model(x), function(x))


def test_values_that_are_no_numbers_are_left_out_of_the_median():
    x = torch.tensor([[math.nan, 3.0, 1.0, 2.0], [math.nan] * 4])
    torch.testing.assert_close(
        export(lambda x: x.nanmedian(1)[0], (x,)).call_as_model(x), x.nanmedian(1)[0], equal_nan=True
    )


@pytest.mark.parametrize("bins", [4, torch.tensor([-1.0, 0.0, 0.5, 2.0])])
def test_histogram_as_density(bins):
    def run(x):
        return tuple(torch.histogram(x, bins, density=True))

    torch.manual_seed(0)
    x = torch.randn(20)
    torch.testing.assert_close(export(run, (x,)).call_as_model(x), run(x))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_distinct_values_of_types_without_a_kernel(dtype: torch.dtype):
    x = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    for model in (lambda x: torch.unique(x, dim=1), lambda x: x.unique(), lambda x: x.mode(1), lambda x: x.all(0)):
        assert export(model, (x,)).verification.skipped == ()


def test_weighted_counts():
    x, weights = torch.tensor([0, 5, 5, 2]), torch.rand(4)
    assert export(lambda x, w: torch.bincount(x, w, minlength=3), (x, weights)).verification.skipped == ()
