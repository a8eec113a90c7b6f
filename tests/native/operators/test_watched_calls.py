"""Activations that oneDNN computes are watched for NaN over a whole call, which is repeated if there was one."""

import pytest
import torch
from torch import nn

import precast


class Blocks(nn.Module):
    """Convolutions with activations that oneDNN computes, and a running total if it is told to keep one."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(24, 24, 5, padding=2) for _ in range(3))
        self.register_buffer("total", torch.zeros(24))
        self.counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        if self.counts:
            self.total.add_(x.mean((0, 2, 3)))
        return x


@pytest.mark.parametrize("counts", [False, True], ids=["only reads", "updates"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.no_grad()
def test_nan_stays_nan_in_the_call_that_has_it_and_in_no_other(counts: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, other = Blocks(counts=counts).eval(), Blocks(counts=counts).eval()
        compiled = precast.compile(model)
        good = torch.randn(1, 24, 9, 9)
        bad = good.clone()
        bad[0, 3, 4, 4] = torch.nan
        for image in (good, bad, good, bad, good):
            torch.testing.assert_close(compiled(image), other(image), equal_nan=True, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(model.total, other.total, equal_nan=True, atol=1e-5, rtol=1e-5)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_flags_that_others_left_behind_change_nothing() -> None:
    compiled, eager = precast.compile(Blocks(counts=False).eval()), Blocks(counts=False).eval()
    image = torch.randn(1, 24, 9, 9)
    for _ in range(3):
        assert torch.full((100_000,), torch.inf).sub(torch.inf).isnan().all()
        torch.testing.assert_close(compiled(image), eager(image), atol=1e-5, rtol=1e-5)
