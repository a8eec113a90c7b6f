"""Backwards that are traced when a loss takes some results: by then the call has stored things in Python's state."""

import pytest
import torch
from torch import nn

import precast


class Storing(nn.Module):
    """Stores something beside its result that no loss takes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        self.commitment = (x - 1).mean()
        return self.keep(x)

    def keep(self, x):
        return x


class Registering(Storing):
    persistent = True

    def keep(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, 4), persistent=self.persistent)
            x = x * 3
        return x * self.table


class RegisteringForNow(Registering):
    persistent = False


class Growing(Storing):
    cache = None

    def keep(self, x):
        rows = x.mean(0, keepdim=True).detach()
        self.cache = rows if self.cache is None else torch.cat([self.cache, rows])
        return x @ self.cache.T @ self.cache


class ReturnsObjects(nn.Module):
    """Runs in Python, around its compiled part."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x), object()


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore::precast.GraphBreakWarning")
@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("kind", [Registering, RegisteringForNow, Growing])
def test_such_a_backward_finds_the_state_of_its_forward(kind, is_part):
    eager, module, x = kind(), kind(), torch.randn(2, 4)
    module.load_state_dict(eager.state_dict())
    around = ReturnsObjects(module) if is_part else module
    compiled = precast.compile(around, backend="nop")
    for _ in range(2):
        gradients = []
        for call, owner in ((compiled, module), (eager, eager)):
            result = call(x)
            (result[0] if isinstance(result, tuple) else result).square().sum().backward()
            gradients.append(owner.linear.weight.grad)
        torch.testing.assert_close(*gradients)
        assert list(vars(module)) == list(vars(eager))
        assert list(module.state_dict()) == list(eager.state_dict())
