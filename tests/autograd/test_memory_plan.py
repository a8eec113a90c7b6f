import pytest
import torch
from torch import nn

import precast


def test_less_budget_saves_less_and_recomputes_more():
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    curve = precast.partition.plan(model, (torch.randn(32, 16),), budgets=[1.0, 0.5, 0.0])
    saved = [point.saved_bytes for point in curve.points]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > saved[-1]
    assert [point.measured_saved_bytes for point in curve.points] == saved
    flops = [point.recomputed_flops for point in curve.points]
    assert flops == sorted(flops)


def test_a_function_without_gradients_is_refused():
    with pytest.raises(ValueError, match="no gradient"):
        precast.partition.plan(lambda x: x * 2, (torch.ones(2),))
