"""Weights that are tensor subclasses: whole in a program as exported, taken apart in a decomposed one."""

import pytest
import torch
from torch import nn
from torch.testing._internal.custom_tensor import CustomTensorPlainOut
from torch.testing._internal.two_tensor import TwoTensor

from precast.export import export

X = torch.randn(2, 3)


class Wrapped(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.plain = nn.Parameter(torch.randn(2, 3))
        self.pair = nn.Parameter(kind(torch.randn(2, 3), torch.randn(2, 3)))
        self.table = nn.Buffer(kind(torch.randn(2, 3), torch.randn(2, 3)))

    def forward(self, x):
        return x + (2 * self.plain + self.pair).sum() + self.table


class LooksInside(Wrapped):
    def forward(self, x):
        result = (2 * self.plain + self.pair) * self.table
        return x + result.a + result.b.sum()


def test_a_decomposed_program_is_over_plain_tensors():
    model = Wrapped(CustomTensorPlainOut)
    whole = export(model, (X,))
    assert list(whole.state_dict) == ["plain", "pair", "table"]
    exported = whole.run_decompositions({})
    assert all(type(tensor) in (torch.Tensor, nn.Parameter) for tensor in exported.state_dict.values())
    torch.testing.assert_close(exported.module()(X), model(X))


def test_a_program_that_looks_inside_is_over_plain_tensors():
    model = LooksInside(TwoTensor)
    exported = export(model, (X,))
    assert "parametrizations.pair.original0" in exported.state_dict
    torch.testing.assert_close(exported.module()(X), model(X))
    assert type(model.pair.data) is TwoTensor, "the module itself is as before"


def test_an_argument_that_is_looked_into_is_refused():
    class Inside(nn.Module):
        def forward(self, x):
            return x.a + 1

    with pytest.raises(RuntimeError, match="not recorded"):
        export(Inside(), (TwoTensor(X, X),))
