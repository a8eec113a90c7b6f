"""Transforms of ``torch.func`` inside of programs, over tensors that the program meets on its way."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jvp, vjp, vmap

import precast


class PerSample(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        parameters = dict(self.layer.named_parameters())

        def loss(parameters, row):
            return functional_call(self.layer, parameters, (row,)).square().sum()

        return vmap(grad(loss), (None, 0))(parameters, x)["weight"]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("scale", torch.randn(3))

    def forward(self, x):
        slope = grad(lambda weight: (weight * x[0]).sin().sum())(self.weight)
        forwards = jvp(lambda weight: (weight * x[0]).exp(), (self.weight,), (torch.ones(3),))[1]
        backwards = vjp(lambda weight: weight * x[0], self.weight)[1](torch.ones(3))[0]
        return slope + forwards + backwards + vmap(lambda element: element * 2)(self.scale)


class Physics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forward(self, x):
        def value(point):
            return self.body(point).squeeze(-1)

        return vmap(grad(value))(x).sum(-1) - vmap(lambda point: hessian(value)(point).diagonal().sum())(x)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", [PerSample, Scaled, Physics])
@pytest.mark.parametrize("way", ["nop", "native", "export"])
def test_transforms_over_parameters(kind, way):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(5, 3)
    if way == "export":
        call = precast.export.export(module, (x,)).module()
    else:
        call = precast.compile(module, backend=way, fullgraph=True)
    torch.testing.assert_close(call(x), module(x))
