"""Random operators: what can be said of any draw."""

import torch
from torch import nn
from torch.nn import functional

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


def test_zeros_and_ones_come_with_their_probabilities():
    probabilities = torch.full((4000,), 0.2)
    (drawn,) = export(torch.bernoulli, (probabilities,))(probabilities)
    assert 0.1 < drawn.mean() < 0.3


def test_dropout_inside_a_model_drops():
    x = torch.ones(4000)
    (result,) = export(lambda x: functional.dropout(x * 2, 0.25, training=True) * 3, (x,))(x)
    assert 0.15 < (result == 0).float().mean() < 0.35
    assert set(result.unique().tolist()) == {0.0, 8.0}


def test_attention_drops_weights():
    query = torch.randn(1, 2, 64, 4)

    def attend(x):
        return functional.scaled_dot_product_attention(x, x, torch.ones_like(x), dropout_p=0.3)

    assert export(attend, (query,))(query)[0].std() > 0.01
