"""Programs that seed torch's generator cannot be exported: their graphs could not."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import precast
from precast.errors import CaptureError


class Seeded(torch.nn.Module):
    def forward(self, x):
        torch.manual_seed(3)
        return x + torch.rand(3)


class SeededForAWhile(torch.nn.Module):
    def forward(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            y = torch.rand(3)
        return x + y


class Restoring(torch.nn.Module):
    def forward(self, x):
        state = torch.get_rng_state()
        y = torch.rand(3)
        torch.set_rng_state(state)
        return x + y + torch.rand(3)


@pytest.mark.parametrize("kind", [Seeded, SeededForAWhile, Restoring])
def test_programs_that_set_the_generators_state_are_refused_at_their_line(kind):
    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match="state of torch's random generator") as raised:
        precast.export(kind(), (torch.ones(3),))
    assert "test_seeds.py" in str(raised.value)
    assert torch.equal(torch.get_rng_state(), before)


class RunsAgain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        y = checkpoint(lambda z: torch.dropout(self.layer(z), 0.5, True), x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), self.layer.weight)[0]


def test_a_checkpoint_that_runs_again_restores_the_state_it_began_with():
    assert precast.export(RunsAgain(), (torch.ones(3),)).module()(torch.ones(3)).shape == (3, 3)
