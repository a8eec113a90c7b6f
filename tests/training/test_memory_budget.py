"""A memory budget lowers what a step keeps, and never changes what it computes."""

import pytest
import torch

import precast
from precast.errors import InputValueError


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.drop = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(torch.nn.functional.gelu(self.linear(self.norm(x))))


def made(memory_budget, backend="native", **settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Layer() for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = lambda model, x: (model(x) - x.sin()).square().mean()  # noqa: E731
    x = torch.randn(256, 8)
    return precast.train_step(model, loss_fn, optimizer, x, memory_budget=memory_budget, backend=backend, **settings), x


def test_smaller_budgets_need_no_more_memory_and_give_the_same_numbers(tmp_path):
    found = []
    for budget in (None, 1.0, 0.25):
        step, x = made(budget)
        found.append((step.arena_bytes, [step(x).item() for _ in range(3)]))
    arenas, losses = zip(*found, strict=True)
    assert arenas[0] > arenas[1] >= arenas[2]
    assert losses[0] == losses[1] == losses[2]


def test_a_budget_goes_into_the_file(tmp_path):
    step, x = made(0.5)
    path = step.save(tmp_path / "model.precast")
    model = precast.runtime.load(path)
    assert "optimizer.tangent" not in model.state
    assert [float(model["train_step"](x.numpy())) for _ in range(2)] == [step(x).item() for _ in range(2)]


def test_budgets_that_are_not_there_yet_are_refused():
    with pytest.raises(InputValueError, match="one micro-batch"):
        made(0.5, backend="nop", accumulate=2)
