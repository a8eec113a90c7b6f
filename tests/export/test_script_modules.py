"""Modules of TorchScript inside of exported ones: recorded like others, or refused; they never change."""

import pytest
import torch
from torch import nn

from precast.errors import CaptureError
from precast.export import Dim, export
from tests.export.test_save_load import round_trip

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
X = torch.randn(4, 3)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = torch.full((3,), 2.0)
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)) * self.k


class Lists(nn.Module):
    def forward(self, x):
        parts = [x, x + 1]
        for i in range(2):
            parts.append(parts[i] * 2)
        return torch.cat(parts if len(parts) > 3 else [x])[:2]


class Counting(nn.Module):
    n: int

    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * self.n


class Making(nn.Module):
    def forward(self, x):
        return x + torch.tensor([1.0, 2.0, 3.0])


class Listing(nn.Module):
    def forward(self, x):
        values: list[list[float]] = x.tolist()
        return x + values[0][0]


class Deciding(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            return x
        return x + 1


class Around(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head, self.again = head, head

    def forward(self, x):
        return self.head(x * 2) + self.again(x)


MODULES = {
    "traced": lambda: torch.jit.trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), X),
    "traced, with constants": lambda: torch.jit.trace(Scaled().eval(), X),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.0))),
    "scripted, with lists": lambda: torch.jit.script(Lists()),
}


@pytest.mark.parametrize("name", MODULES)
def test_its_operators_are_recorded(name):
    model = Around(MODULES[name]())
    program = export(model, (X,), dynamic_shapes={"x": {0: Dim("batch", min=2)}})
    assert program.graph_signature.parameters == tuple(name for name, _ in model.named_parameters())
    for other in (program, program.run_decompositions(), round_trip(program)):
        for x in (X, torch.randn(7, 3)):
            torch.testing.assert_close(other.module()(x), model(x))


@pytest.mark.parametrize("make", [lambda: torch.jit.trace(Scaled(), X), lambda: torch.jit.script(Scaled())])
def test_it_writes_into_its_buffers_when_the_program_runs(make):
    model = Around(make())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module = export(model, (X,)).module()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    module.load_state_dict({name: value.clone() for name, value in before.items()})
    result = module(X)
    assert not torch.equal(module.state_dict()["head.norm.running_mean"], before["head.norm.running_mean"])
    torch.testing.assert_close(result, model(X))
    torch.testing.assert_close(module.state_dict()["head.norm.running_mean"], model.head.norm.running_mean)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Counting, "assigns to its attributes"),
        (Making, "calls aten::tensor"),
        (Listing, "calls prim::tolist"),
        (Deciding, "cannot be captured"),
    ],
)
def test_what_torchscript_does_by_itself_is_refused(make, words):
    with pytest.raises(CaptureError, match=words):
        export(Around(torch.jit.script(make())), (X,))


class Bare(nn.Module):
    """Calls what a scripted module is in C++, which is no ``torch.nn.Module``."""

    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(3, 2))._c

    def forward(self, x):
        return self.inner.forward(x * 2)


def test_a_scripted_module_without_its_python_is_recorded_with_its_weights_as_constants():
    model = Bare()
    program = export(model, (X,), dynamic_shapes={"x": {0: Dim("batch", min=2)}})
    assert len(program.constants) == 2
    for x in (X, torch.randn(7, 3)):
        torch.testing.assert_close(round_trip(program).module()(x), model(x))
