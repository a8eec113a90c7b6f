"""Checkpointed regions in programs that run in pieces: torch's second run calls what the first one called."""

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import precast
from precast.compilers import nop


class Scaled(torch.nn.Module):
    """Each gradient of the input is the result over the input, if both runs drop the same elements."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(16) + 1)
        self.inside = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Identity())

    def forward(self, x):
        return self.inside(x * self.weight).clone()


class Printing(torch.nn.Module):
    """Runs in Python, since it decides by a value, and checkpoints a module that is compiled."""

    def __init__(self, *, use_reentrant):
        super().__init__()
        self.block, self.use_reentrant = Scaled(), use_reentrant

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x
        return checkpoint(self.block, x, use_reentrant=self.use_reentrant)


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore::precast.GraphBreakWarning")
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("backend", ["nop", "native"])
def test_both_runs_of_a_region_are_one(backend, use_reentrant):
    module = Printing(use_reentrant=use_reentrant)
    compiled = precast.compile(module, backend=backend)
    for _ in range(3):
        x = (torch.rand(8, 16) + 1).requires_grad_()
        result = compiled(x)
        result.sum().backward()
        torch.testing.assert_close(x.grad, (result / x).detach())
        assert 0 < int((result == 0).sum()) < result.numel()


def test_torchs_regions_elsewhere_are_as_they_were():
    compiled = precast.compile(Printing(use_reentrant=False), backend=nop)
    with warnings.catch_warnings(action="ignore", category=precast.GraphBreakWarning):
        compiled(torch.ones(2, 16, requires_grad=True)).sum().backward()
    calls = []
    x = torch.ones(3, requires_grad=True)
    checkpoint(lambda x: (calls.append(1), x.sin())[1], x, use_reentrant=False).sum().backward()
    assert len(calls) == 2
    assert torch.equal(x.grad, x.detach().cos())
