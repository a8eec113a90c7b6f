"""Dropout that is turned off returns its input itself."""

import pytest
import torch
import torch.nn.functional as F

import precast


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.dropout(x, training=False),
        lambda x: torch.dropout(x, 0.5, False),
        torch.nn.Dropout().eval(),
    ],
)
def test_the_output_is_the_input(drop):
    x = torch.randn(3, 4)
    assert precast.compile(lambda x: drop(x), backend="nop", dynamic=True)(x) is x


@pytest.mark.parametrize("chance", [-0.5, 1.5])
def test_chances_that_are_none_are_refused(chance):
    with pytest.raises(ValueError, match="dropout probability"):
        precast.compile(lambda x: F.dropout(x, chance, False), backend="nop", fullgraph=True)(torch.randn(3))
