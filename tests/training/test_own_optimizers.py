"""Optimizers as people write them, which count in Python and exchange their state, step as in eager."""

import math

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import CaptureError, DataDependentError, InputValueError
from tests.training.like_eager import Network, assert_like_eager, batches, eager_step, loss_of


class Plain(torch.optim.Optimizer):
    """Calls ``update`` for each parameter that has a gradient."""

    def __init__(self, parameters, lr=1e-2, **more):
        super().__init__(parameters, {"lr": lr, **more})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group)


class AdamOfOld(Plain):
    """Counts in Python."""

    def update(self, parameter, gradient, state, group):
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
        state["square"].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        size = group["lr"] * math.sqrt(1 - 0.99 ** state["step"]) / (1 - 0.9 ** state["step"])
        parameter.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-3), value=-size)


class CountsInTensors(Plain):
    """Its count has another shape than the parameter."""

    def update(self, parameter, gradient, state, group):
        if not state:
            state["step"], state["mean"] = torch.tensor(0.0), torch.zeros_like(parameter)
        state["step"] += 1
        state["mean"].lerp_(gradient, 0.1)
        parameter.sub_(group["lr"] * state["mean"] / (1 - 0.9 ** state["step"]))


class Exchanging(Plain):
    """Makes new state in each step, some of which it never reads."""

    def update(self, parameter, gradient, state, group):
        state["mean"] = 0.9 * state.get("mean", torch.zeros_like(parameter)) + 0.1 * gradient
        state["norm"] = gradient.norm()
        parameter.sub_(group["lr"] * state["mean"] / (1 + state["norm"]))


class WarmingUp(Plain):
    """Counts in an attribute, and keeps a tensor in another."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.steps, self.longest = 0, torch.zeros(())

    def step(self, closure=None):
        self.steps += 1
        super().step(closure)

    def update(self, parameter, gradient, state, group):
        self.longest = torch.maximum(self.longest, gradient.norm())
        parameter.sub_(gradient / (1 + self.longest), alpha=group["lr"] * min(1.0, self.steps / 3))


class Factored(Plain):
    """Has state of a parameter's sides."""

    def update(self, parameter, gradient, state, group):
        side = gradient.reshape(gradient.shape[0], -1)
        if not state:
            state["rows"], state["whole"] = torch.zeros(len(side)), torch.zeros(len(side), len(side))
        state["rows"].lerp_(side.square().mean(1), 0.1)
        state["whole"].lerp_(side @ side.t(), 0.1)
        change = (torch.eye(len(side)) + state["whole"]) @ side / (state["rows"].sqrt()[:, None] + 0.1)
        parameter.sub_(change.reshape(parameter.shape), alpha=group["lr"])


class CountsInGroups(torch.optim.SGD):
    """Makes its count in its first step, and sets its own learning rate."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] *= 0.9


def of(kind, **options):
    return lambda model: kind(model.parameters(), **options)


KINDS = [AdamOfOld, CountsInTensors, Exchanging, WarmingUp, Factored, CountsInGroups]


@pytest.mark.parametrize("kind", KINDS)
def test_own_optimizers_step_as_in_eager(kind):
    step = assert_like_eager(Network(), of(kind), backend="nop", skip_nonfinite=kind is AdamOfOld)
    assert len(step._variants) == 1
    for state in step.optimizer.state.values():
        assert {type(each) for each in state.values()} <= {torch.Tensor, int}
    for group in step.optimizer.param_groups:
        assert type(group.get("steps", 6)) is int
        assert group.get("steps", 6) == 6


@pytest.mark.parametrize("kind", [AdamOfOld, WarmingUp, CountsInGroups])
def test_counts_are_restored(kind, tmp_path):
    def made():
        model = Network()
        return precast.train_step(model, loss_of, of(kind)(model), batches(1)[0], backend="nop")

    straight, first, second, third = made(), made(), made(), made()
    data = batches(6)
    for batch in data:
        straight(batch)
    for batch in data[:3]:
        first(batch)
    first.save_checkpoint(tmp_path)
    second.load_state_dict(first.state_dict())
    third(data[0])
    third.load_checkpoint(tmp_path)
    for step in (second, third):
        for batch in data[3:]:
            step(batch)
        for name, expected in straight.model.state_dict().items():
            assert torch.equal(expected, step.model.state_dict()[name]), name


@pytest.mark.parametrize("kind", [AdamOfOld, pytest.param(Exchanging, marks=pytest.mark.slow)])
def test_counts_go_on_without_torch(kind, tmp_path):
    model, eager = Network(), Network()
    optimizers = [of(kind)(each) for each in (model, eager)]
    step = precast.train_step(model, loss_of, optimizers[0], batches(1)[0], backend="nop", entries=("train",))
    data = batches(6)
    step(data[0])
    loaded = precast.runtime.load(step.save(tmp_path / "model.precast"))
    for number, batch in enumerate(data):
        eager_step(eager, loss_of, optimizers[1], batch)
        if number:
            loaded["train_step"](batch.numpy())
    for name, expected in eager.state_dict().items():
        np.testing.assert_allclose(loaded.state[f"model.{name}"], expected.numpy(), rtol=1e-4, atol=1e-5)


class InGroupsWithoutDefaults(torch.optim.Optimizer):
    """All settings are in the groups."""

    def __init__(self, parameters):
        super().__init__([{"params": list(parameters), "lr": 0.1, "decay": 0.0, "is_signed": False}], {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                change = parameter.grad.sign() if group["is_signed"] else parameter.grad
                parameter.mul_(1 - group["lr"] * group["decay"]).sub_(change, alpha=group["lr"])


def test_settings_without_defaults_may_change():
    model, eager = Network(), Network()
    optimizers = [InGroupsWithoutDefaults(each.parameters()) for each in (model, eager)]
    step = precast.train_step(model, loss_of, optimizers[0], batches(1)[0], backend="nop")
    for number, batch in enumerate(batches(5)):
        for optimizer in optimizers:
            optimizer.param_groups[0].update(decay=0.1 * number, is_signed=number == 4)
        step(batch)
        eager_step(eager, loss_of, optimizers[1], batch)
    for name, expected in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], expected, rtol=1e-5, atol=1e-6)


class Deciding(Plain):
    def update(self, parameter, gradient, state, group):
        state["step"] = state.get("step", 0) + 1
        if state["step"] % 3 == 0:
            parameter.sub_(gradient)


class MakesStateLate(Plain):
    def update(self, parameter, gradient, state, group):
        if "late" not in state and "first" in state:
            state["late"] = gradient.clone()
        state.setdefault("first", torch.ones_like(gradient))
        parameter.sub_(gradient * state["first"], alpha=group["lr"])


class Naming(Plain):
    def update(self, parameter, gradient, state, group):
        group["phase"] = group.get("phase", "") + "a"
        parameter.sub_(gradient)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (Deciding, DataDependentError, "uses the value of a tensor"),
        (MakesStateLate, CaptureError, "creates 'late' of its state in the middle of training"),
        (Naming, InputValueError, "changes 'phase', a str"),
    ],
)
def test_what_is_refused_leaves_the_optimizer_as_it_was(kind, error, words):
    model = Network()
    optimizer = of(kind)(model)

    def train():
        step = precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop")
        for batch in batches(3):
            step(batch)

    with pytest.raises(error, match=words):
        train()
    for batch in batches(2):
        eager_step(model, loss_of, optimizer, batch)
    assert all(torch.isfinite(each).all() for each in model.parameters())
