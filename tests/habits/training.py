"""Habits of how models are trained: teachers, adapters, constrained weights, inner steps, and looks at types."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from tests.habits.storing import WIDTH, Block


class Teacher(Block):
    """Moves a frozen copy of its layer at each call."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.linear).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for theirs, own in zip(self.teacher.parameters(), self.linear.parameters(), strict=True):
            theirs.mul_(0.9).add_(own, alpha=0.1)

    def forward(self, x):
        self.follow()
        with torch.no_grad():
            target = self.teacher(x)
        return self.linear(x) - target


class Adapter(Block):
    def __init__(self):
        super().__init__()
        self.linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH) * 0.1)
        self.up = nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x):
        return self.linear(x) + x @ self.down.T @ self.up.T * 0.5


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


class Constrained(Block):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self.linear, "weight", Symmetric())

    def forward(self, x):
        with parametrize.cached():
            return self.linear(self.linear(x).tanh())


class InnerSteps(Block):
    def forward(self, x):
        weight = self.linear.weight
        if not torch.is_grad_enabled():
            return self.linear(x)
        for _ in range(2):
            loss = functional.linear(x, weight).pow(2).sum()
            (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
            weight = weight - 0.01 * gradient
        return functional.linear(x, weight)


class CalledItsOwnWay(Block):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) * 0.5

    def forward(self, x):
        return self.linear(x)


class AsksForTypes(Block):
    def forward(self, x):
        if type(x) is not torch.Tensor or type(self.linear.weight) is not nn.Parameter:
            raise TypeError(f"a tensor is needed, not {type(x).__name__}")
        return self.linear(x)


class ViewsInPlace(Block):
    def forward(self, x):
        rows = self.linear(x)[None]
        rows.squeeze_(0)
        rows += x
        first = rows[:1]
        first.t_()
        first[0] *= 2
        return rows


class Seeded(Block):
    def forward(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            projection = torch.randn(WIDTH, WIDTH)
        return self.linear(x @ projection)


BLOCKS = [
    Teacher, Adapter, Constrained, InnerSteps, CalledItsOwnWay, AsksForTypes, ViewsInPlace, Seeded,
]  # fmt: skip
