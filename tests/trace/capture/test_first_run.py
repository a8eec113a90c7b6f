"""A module that meets nothing beyond its state is recorded in its first run; for others, one before finds what."""

from ctypes import c_int

import pytest
import torch
from torch import nn

from precast.trace.capture import capture

HIDDEN = torch.full((3,), 2.0)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0] * HIDDEN


def runs_of(forward, **state):
    """How often capturing a module calls its forward."""
    runs = c_int(0)  # Python's state, which a list would be, is as before after a trace.

    def counted(self, x):
        runs.value += 1
        return forward(self, x)

    made = type("Made", (nn.Module,), {"forward": counted})()
    made.layer = nn.Linear(3, 3)
    for name, value in state.items():
        setattr(made, name, value)
    program = capture(made, (torch.ones(2, 3),))
    return runs.value, sorted(program.state)


def test_a_module_of_parameters_runs_once():
    assert runs_of(lambda self, x: self.layer(x) + torch.tensor([1.0, 2.0, 3.0]))[0] == 1


@pytest.mark.parametrize(
    ("forward", "state"),
    [
        (lambda self, x: self.layer(x) * HIDDEN, {}),
        (lambda self, x: self.layer(x) * self.kept, {"kept": torch.ones(3)}),
        (lambda self, x: Square.apply(self.layer(x)), {}),
        (lambda self, x: torch.func.grad(lambda y: (y * y).sum())(x), {}),
    ],
    ids=["a global", "an attribute", "a backward of its own", "a transform"],
)
def test_what_is_found_on_the_way_takes_a_run_of_its_own(forward, state):
    assert runs_of(forward, **state)[0] > 1


def test_a_global_that_the_first_run_met_is_a_constant():
    _, state = runs_of(lambda self, x: self.layer(x) * HIDDEN)
    assert state == ["layer.bias", "layer.weight", "lifted_tensor_0"]
