"""Divisions that round and what they leave, where floats come out beside a whole number; numbers beyond 53 bits."""

import pytest
import torch

from precast.onnx import export

X = torch.tensor([1.0, 0.6, -1.0, 7.5, 5.0, -5.0, 0.3, 10.0])
Y = torch.tensor([0.1, 0.2, 0.1, -0.1, 0.7, 0.7, 0.1, -3.0])
EDGES = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 3.0, -3.0, 1e-3])


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x // y, x // 0.1, 3.3 // y),
        lambda x, y: (x % y, x % 0.1, 3.3 % y),
        lambda x, y: (torch.fmod(x, y), torch.fmod(x, 0.1)),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
    ],
)
def test_floats(function, dtype):
    program = export(function, (X.to(dtype), Y.to(dtype)))
    for x, y in [(X, Y), (EDGES, Y), (Y, EDGES)]:
        actual = program.call_as_model(x.to(dtype), y.to(dtype))
        torch.testing.assert_close(actual, function(x.to(dtype), y.to(dtype)), equal_nan=True, rtol=0, atol=0)


LARGE = torch.tensor([2**24 + 1, 2**40 + 1, -(2**40) - 1, 2**62, -7, 7])
SMALL = torch.tensor([1, 1, 3, 2, 2, -2])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, 3, rounding_mode="floor"),
        lambda x, y: (x // y, x % y, x // 3, x % 3, torch.fmod(x, y)),
        lambda x, y: (x**2, (x % 100) ** 9, x**0, x**1),
        lambda x, y: (x << y.abs(), x >> y.abs(), x >> 3, 1 << y.abs()),
    ],
)
def test_large_whole_numbers(function):
    program = export(function, (LARGE, SMALL))
    torch.testing.assert_close(program.call_as_model(LARGE, SMALL), function(LARGE, SMALL), rtol=0, atol=0)
