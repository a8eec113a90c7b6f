"""A program that asks for the type of a value is told eager's."""

import torch
from torch import nn

import precast


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        made = type("Made", (), {"factor": 3})
        is_plain = type(x) is torch.Tensor and type(x + 1).__name__ == "Tensor" and type(self) is Asking
        is_own = type(self.linear.weight) is nn.Parameter and type([x]) is list and type(None) is not list
        is_type = isinstance(nn.Module, type) and issubclass(type, object) and not isinstance(x, type)
        is_itself = type(type(x)) is type(torch.Tensor) and type(int) is type
        if is_plain and is_own and is_type and is_itself and type(x.shape[0]) is int:
            return self.linear(x) * made.factor
        return x


def test_types_are_those_of_eager():
    module = Asking()
    for dynamic in (False, True):
        compiled = precast.compile(module, backend="nop", fullgraph=True, dynamic=dynamic)
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(3, 2)), module.linear(torch.ones(3, 2)) * 3)
        assert len(precast.variants(compiled)) == 1
    assert "type" not in globals()
