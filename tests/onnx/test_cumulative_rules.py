"""Running products and extremes along a dimension of any length."""

import math

import pytest
import torch

from precast.onnx import export
from precast.trace.capture import Dim


@pytest.mark.thinned
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("function", [torch.cumprod, torch.cummax, torch.cummin])
def test_any_length(function, dim: int):
    def run(x):
        return tuple(function(x, dim)) if function is not torch.cumprod else function(x, dim)

    sizes = {0: Dim("rows", min=1), 1: Dim("columns", min=1)}
    program = export(run, (torch.randn(3, 4),), dynamic_shapes=(sizes,))
    for shape in ((3, 4), (7, 1), (1, 9)):
        x = torch.randn(shape).round(decimals=1)
        torch.testing.assert_close(program.call_as_model(x), run(x))


def test_nan_stays_the_best():
    x = torch.tensor([1.0, math.nan, 3.0, math.nan])
    torch.testing.assert_close(export(lambda x: tuple(x.cummax(0)), (x,))(x), tuple(x.cummax(0)), equal_nan=True)


def test_integers_and_another_dtype():
    x = torch.tensor([[2, 3], [4, 5]])
    assert export(lambda x: x.cumprod(1), (x,)).call_as_model(x).tolist() == [[2, 6], [4, 20]]
    assert export(lambda x: x.cumprod(0, dtype=torch.float32), (x,)).call_as_model(x).dtype == torch.float32
