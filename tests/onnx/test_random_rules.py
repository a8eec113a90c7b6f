"""Random operators: what can be said of any draw."""

import torch
from torch import nn

from precast.onnx import export


def test_a_permutation_has_every_number_once():
    program = export(lambda x: torch.randperm(50) + 0 * x, (torch.zeros(50, dtype=torch.int64),))
    draws = [program.call_as_model(torch.zeros(50, dtype=torch.int64)) for _ in range(2)]
    assert all(sorted(draw.tolist()) == list(range(50)) for draw in draws)
    assert draws[0].tolist() != draws[1].tolist()


def test_random_slopes_lie_in_their_range():
    slopes = export(nn.RReLU(0.2, 0.4).train(), (-torch.ones(1000),)).call_as_model(-torch.ones(1000))
    assert -0.4 <= slopes.min() < -0.35
    assert -0.25 < slopes.max() <= -0.2


def test_slopes_are_fixed_in_eval():
    x = torch.randn(10)
    torch.testing.assert_close(export(nn.RReLU().eval(), (x,)).call_as_model(x), nn.RReLU().eval()(x))


def test_uniform_numbers_lie_in_their_range():
    def run(x):
        return torch.empty_like(x).uniform_(3, 5)

    drawn = export(run, (torch.zeros(1000),)).call_as_model(torch.zeros(1000))
    assert 3 <= drawn.min() < 3.2
    assert 4.8 < drawn.max() <= 5
