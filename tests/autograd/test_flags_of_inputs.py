"""Whether inputs and state require grad, where a compiled program itself says so: that holds after the call."""

import pytest
import torch
from torch import nn

import precast
from precast.autograd import aot_function, aot_module
from precast.compilers import nop
from precast.errors import CaptureError


def plain():
    return torch.arange(3.0)


def leaf():
    return torch.arange(3.0, requires_grad=True)


def result():
    return leaf() * 2


def starts(x):
    x.requires_grad_()
    return (x**3).sum()


def starts_by_attribute(x):
    x.requires_grad = True
    return (x * 3).sum()


def starts_between(x):
    before = x * 2
    x.requires_grad_()
    return (x * 3 + before).sum()


def starts_if_needed(x):
    if not x.requires_grad:
        x.requires_grad_()
    return x.sin().sum()


def starts_in_no_grad(x):
    with torch.no_grad():
        x.requires_grad_()
    with torch.enable_grad():
        return x.exp().sum()


def starts_and_takes_gradient(x):
    x.requires_grad_()
    energy = (x**3).sum()
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy + slope.sum()


def starts_and_writes(x):
    x.requires_grad_()
    with torch.no_grad():
        x.add_(1)
    return (x**2).sum()


def starts_and_returns(x):
    return x.requires_grad_()


def starts_and_returns_view(x):
    return x.requires_grad_().view(-1)


def starts_without_results(x):
    x.requires_grad_()
    return 3


@pytest.mark.parametrize(
    "function",
    [
        starts,
        starts_by_attribute,
        starts_between,
        starts_if_needed,
        starts_in_no_grad,
        starts_and_takes_gradient,
        starts_and_writes,
        starts_and_returns,
        starts_and_returns_view,
        starts_without_results,
    ],
)
def test_inputs_that_start_to_require_grad_do_so_for_the_caller(function):
    compiled = aot_function(function, nop)
    for _ in range(2):
        ours, eager = plain(), plain()
        outputs = compiled(ours), function(eager)
        assert ours.requires_grad == eager.requires_grad
        assert ours.is_leaf
        assert (outputs[0] is ours) == (outputs[1] is eager)
        if isinstance(outputs[1], torch.Tensor):
            for output in outputs:
                output.sum().backward()
        assert (ours.grad is None) == (eager.grad is None)
        assert ours.grad is None or torch.allclose(ours.grad, eager.grad)
        assert torch.equal(ours, eager)


def stops(x):
    x.requires_grad_(False)
    return x * 2


def stops_by_attribute(x):
    x.requires_grad = False
    return x * 2


def stops_between(x):
    before = x * 3
    x.requires_grad_(False)
    return before + x


def stops_and_returns_view(x):
    before = x.view(-1)
    x.detach_()
    return before, x.view(-1)


def detaches(x):
    return x.detach_()


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (stops, leaf),
        (stops_by_attribute, leaf),
        (stops_between, leaf),
        (stops_and_returns_view, leaf),
        (detaches, leaf),
        (detaches, result),
    ],
)
def test_inputs_that_stop_requiring_grad_do_so_for_the_caller(function, make):
    compiled = aot_function(function, nop)
    for _ in range(2):
        ours, eager = make(), make()
        outputs, expected = compiled(ours), function(eager)
        assert not ours.requires_grad
        assert ours.is_leaf
        if isinstance(expected, torch.Tensor):
            outputs, expected = (outputs,), (expected,)
        assert [each.requires_grad for each in outputs] == [each.requires_grad for each in expected]
        for given, wanted in zip(outputs, expected, strict=True):
            if wanted.requires_grad:
                given.sum().backward()
                wanted.sum().backward()
        assert (ours.grad is None) == (eager.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, eager.grad)


class Freezes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        self.body.requires_grad_(not self.training)
        return self.head(self.body(x))


@pytest.mark.parametrize("compile_module", [lambda m: aot_module(m, nop), lambda m: precast.compile(m, backend="nop")])
def test_modules_freeze_and_thaw_their_parameters(compile_module):
    torch.manual_seed(0)
    eager = Freezes()
    own = Freezes()
    own.load_state_dict(eager.state_dict())
    compiled = compile_module(own)
    for training in (True, True, False, True):
        flags = []
        for caller, owner in ((compiled, own), (eager, eager)):
            owner.train(training)
            owner.zero_grad()
            caller(torch.ones(2, 3)).sum().backward()
            flags.append([(each.requires_grad, each.grad is None) for each in owner.parameters()])
        assert flags[0] == flags[1]
        for ours, theirs in zip(own.parameters(), eager.parameters(), strict=True):
            assert theirs.grad is None or torch.allclose(ours.grad, theirs.grad)


def test_gradients_of_gradients_end_in_inputs_that_started_to_require_grad():
    def cube(x):
        x.requires_grad_()
        return (x**3).sum()

    x = torch.tensor([1.0, 2.0])
    loss = aot_function(cube, nop)(x)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second, 6 * x)


def test_inputs_that_share_memory_and_start_to_require_grad_are_refused():
    def writes_and_starts(a, b):
        a.mul_(2)
        b.requires_grad_()
        return a + b

    whole = torch.ones(4)
    with pytest.raises(CaptureError, match="says of an input whether it requires grad"):
        aot_function(writes_and_starts, nop)(whole[:3], whole[1:])
