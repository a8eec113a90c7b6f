"""``tensor.data = other`` in a program reaches whoever holds the tensor, unseen by autograd."""

import copy

import pytest
import torch
from torch import nn

import precast
from precast.errors import CaptureError


def compiled(function):
    return precast.compile(function, backend="interpret", fullgraph=True)


def of_an_argument(x):
    x.data = x * 2
    return x + 1


def of_other_sizes(x):
    x.data = torch.ones(2, 5)
    return x * 2


def of_an_intermediate(x):
    y = x.sin()
    y.data = x * 2
    return y * y


@pytest.mark.parametrize("function", [of_an_argument, of_other_sizes, of_an_intermediate])
def test_results_and_arguments_are_eagers(function):
    mine, theirs = torch.arange(3.0), torch.arange(3.0)
    assert torch.equal(compiled(function)(mine), function(theirs))
    assert torch.equal(mine, theirs)


def test_gradients_flow_by_what_the_tensor_was():
    mine, theirs = (torch.arange(3.0, requires_grad=True) for _ in range(2))
    compiled(of_an_intermediate)(mine).sum().backward()
    of_an_intermediate(theirs).sum().backward()
    assert torch.equal(mine.grad, theirs.grad)


class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        self.average.data = self.average * 0.5 + x.detach()
        self.weight.data = self.weight.data * 2
        return (x * self.weight).sum() + self.average.sum()


def test_parameters_and_buffers_change_call_by_call():
    eager, x = Averaging(), torch.arange(3.0)
    module = copy.deepcopy(eager)
    call = compiled(module)
    for _ in range(2):
        torch.testing.assert_close(call(x), eager(x))
        torch.testing.assert_close(module.state_dict(), eager.state_dict())


def test_another_type_is_refused():
    def function(x):
        x.data = x.double()
        return x + 1

    with pytest.raises(CaptureError, match="float64"):
        compiled(function)(torch.ones(3))
