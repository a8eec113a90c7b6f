"""Operators on whole numbers, which ONNX has for floats alone; and numbers at which torchlib is wrong."""

import math

import pytest
import torch

from precast.onnx import export

X, Y = torch.tensor([-7, 0, 3, 12]), torch.tensor([4, 0, -9, 18])
MATRIX = torch.arange(9).reshape(3, 3) - 4


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (torch.ceil, (X,)),
        (torch.floor, (X,)),
        (torch.round, (X,)),
        (torch.trunc, (X,)),
        (torch.isnan, (X,)),
        (torch.isinf, (X,)),
        (torch.isfinite, (X,)),
        (lambda x: x.logsumexp(0), (X,)),
        (torch.relu, (X,)),
        (torch.fmax, (X, Y)),
        (torch.fmin, (X, Y)),
        (torch.gcd, (X, Y)),
        (torch.lcm, (X, Y)),
        (lambda x, y: torch.gcd(x[:, None], y), (X.int(), Y.int())),
        (lambda x: x.softmax(0, dtype=torch.float32), (X,)),
        (lambda x: x.log_softmax(0, dtype=torch.float64), (X,)),
        (lambda x: x.softmax(0, dtype=torch.float32), (torch.tensor(3),)),
        (lambda x: torch.addmm(x[0], x, x, beta=2, alpha=3), (MATRIX,)),
        (lambda x: torch.nn.functional.linear(x, x, x[0]), (MATRIX,)),
        (torch.nanmedian, (X,)),
    ],
)
def test_whole_numbers(function, call):
    program = export(function, call)
    torch.testing.assert_close(program(*call)[0], function(*call))


MASK, OTHER = torch.tensor([True, False, True]), torch.tensor([True, True, False])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat([x, y], dim=-1),
        lambda x, y: torch.stack([x, y], 1),
        lambda x, y: x.masked_fill(y, True),
        lambda x, y: x.masked_fill(y, 0),
        torch.maximum,
        torch.minimum,
        torch.fmax,
        lambda x, y: torch.where(x, y, True),
    ],
)
def test_truth_values(function):
    assert export(function, (MASK, OTHER))(MASK, OTHER)[0].tolist() == function(MASK, OTHER).tolist()


def test_the_slowest_division():
    call = torch.tensor([7540113804746346429]), torch.tensor([4660046610375530309])
    assert export(torch.gcd, call)(*call)[0].item() == 1


def test_angles_all_around():
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    call = ends[:, None].expand(7, 7).contiguous(), ends
    torch.testing.assert_close(export(torch.atan2, call)(*call)[0], torch.atan2(*call), equal_nan=True)
