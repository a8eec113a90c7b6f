"""Modules as arguments: what is called inside of a program may be another module at each call."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from precast.export import export, load, save


class Caller(nn.Module):
    def forward(self, x, head, *, scale=1.0):
        return head(x) * scale + head.weight.sum()


X = torch.randn(2, 3)


def test_each_call_takes_a_module_of_its_own():
    exported = export(Caller(), (X, nn.Linear(3, 3)))
    assert [spec.arg.name for spec in exported.graph_signature.input_specs] == ["x", "head_weight", "head_bias"]
    other = nn.Linear(3, 3)
    torch.testing.assert_close(exported.module()(X, other), Caller()(X, other))
    exported.module()(X, other).sum().backward()
    assert other.weight.grad is not None


def test_parametrized_weights_are_inputs_as_they_are_stored():
    exported = export(Caller(), (X, parametrizations.weight_norm(nn.Linear(3, 3))))
    other = parametrizations.weight_norm(nn.Linear(3, 3))
    torch.testing.assert_close(exported.module()(X, other), Caller()(X, other))


def test_the_module_that_was_exported_with_is_as_before():
    head = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    head.weight = head[0].weight
    before = dict(head.named_parameters())
    export(Caller(), (X, head))
    assert dict(head.named_parameters()).keys() == before.keys()
    assert all(value is before[name] for name, value in head.named_parameters())


def test_a_module_with_other_parameters_is_refused():
    exported = export(Caller(), (X, nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="structure"):
        exported.module()(X, nn.Linear(3, 3, bias=False))


def test_it_is_saved(tmp_path):
    save(export(Caller(), (X, nn.Linear(3, 3)), {"scale": 2.0}), tmp_path / "called.pt2")
    loaded, other = load(tmp_path / "called.pt2"), nn.Linear(3, 3)
    torch.testing.assert_close(loaded.module()(X, other, scale=2.0), Caller()(X, other, scale=2.0))
