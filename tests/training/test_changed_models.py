"""What people do to a model or an optimizer between two steps is seen by the next one, as in eager."""

import copy
from dataclasses import dataclass
from importlib import import_module

import numpy
import pytest
import torch

import precast
from precast.errors import InputTypeError
from tests.training.like_eager import Network, batches, eager_step, loss_of


def exchange_a_module(model, optimizer):
    model.last = torch.nn.Linear(6, 3, bias=False)
    torch.nn.init.constant_(model.last.weight, 0.1)


def exchange_a_parameter(model, optimizer):
    model.last.weight = torch.nn.Parameter(model.last.weight.detach() * 2)


def assign_loaded_parameters(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def load_all_state(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def forget_the_state_of_a_parameter(model, optimizer):
    optimizer.state[model.last.weight] = {}


def forget_all_state(model, optimizer):
    optimizer.state.clear()


def lay_a_parameter_out_otherwise(model, optimizer):
    model.first.weight.data = model.first.weight.data.t().contiguous().t()


def tie_parameters(model, optimizer):
    model.last.weight = torch.nn.Parameter(torch.ones(6, 6))
    model.first = torch.nn.Linear(4, 6, bias=False)
    torch.nn.init.constant_(model.first.weight, 0.3)
    optimizer.param_groups[0]["params"][:] = model.parameters()


def add_a_group(model, optimizer):
    model.last.bias = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [model.last.bias], "lr": 0.1})


def move_a_parameter_to_the_next_group(model, optimizer):
    first, second = optimizer.param_groups
    second["params"].insert(0, first["params"].pop())


def load_another_learning_rate(model, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        group["lr"] = group["lr"] * 3
    optimizer.load_state_dict(state)


def set_numbers_of_numpy(model, optimizer):
    for group in optimizer.param_groups:
        group.update(lr=numpy.float32(0.3), weight_decay=numpy.float32(0.5))


def train_in_float64(model, optimizer):
    model.double()
    optimizer.state.clear()
    model.first.register_forward_pre_hook(lambda module, args: (args[0].double(),))


OFTEN = [exchange_a_module, assign_loaded_parameters, forget_the_state_of_a_parameter]
SELDOM = [
    exchange_a_parameter, load_all_state, forget_all_state, lay_a_parameter_out_otherwise, tie_parameters, add_a_group,
    train_in_float64,
]  # fmt: skip


def sum_of_squares(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize("change", [*OFTEN, *(pytest.param(each, marks=pytest.mark.slow) for each in SELDOM)])
def test_changes_between_steps_are_seen(change):
    own, eager = Network(), Network()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (own, eager)]
    data = batches(4)
    step = precast.train_step(own, sum_of_squares, optimizers[0], data[0], backend="nop")
    for number, batch in enumerate(data):
        if number == 2:
            for model, optimizer in ((own, optimizers[0]), (eager, optimizers[1])):
                change(model, optimizer)
        expected = eager_step(eager, sum_of_squares, optimizers[1], batch)
        torch.testing.assert_close(step(batch), expected, rtol=2e-5, atol=1e-6)
    for one, other in zip(own.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "lr"),
    [
        (move_a_parameter_to_the_next_group, 0.01), (set_numbers_of_numpy, 0.01),
        (set_numbers_of_numpy, numpy.int64(0)),
        (load_another_learning_rate, 0.01), (load_another_learning_rate, torch.tensor(0.01)),
    ],
    ids=["move", "numpy", "numpy-integer", "load", "load-tensor"],
)  # fmt: skip
def test_changes_of_groups_are_seen(change, lr):
    own, eager = Network(), Network()
    optimizers = [
        torch.optim.Adam([{"params": list(each.parameters())[:2]}, {"params": list(each.parameters())[2:],
                          "weight_decay": 0.1}], lr=copy.deepcopy(lr), foreach=False)
        for each in (own, eager)
    ]  # fmt: skip
    data = batches(4)
    step = precast.train_step(own, loss_of, optimizers[0], data[0], backend="nop")
    for number, batch in enumerate(data):
        if number == 2:
            for optimizer, model in zip(optimizers, (own, eager), strict=True):
                change(model, optimizer)
        torch.testing.assert_close(step(batch), eager_step(eager, loss_of, optimizers[1], batch), rtol=2e-5, atol=1e-6)
    for one, other in zip(own.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def exchange_an_activation(teacher):
    teacher[1] = torch.nn.ReLU()


def append_a_layer(teacher):
    teacher.append(torch.nn.ReLU())


def train_the_teacher(teacher):
    teacher.train()


def double_its_weights(teacher):
    teacher.load_state_dict({name: 2 * tensor for name, tensor in teacher.state_dict().items()})


@pytest.mark.parametrize("change", [exchange_an_activation, append_a_layer, train_the_teacher, double_its_weights])
def test_changes_of_modules_that_only_the_loss_function_uses_are_seen(change):
    teacher = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh(), torch.nn.Dropout(0.5)).eval()
    teacher.requires_grad_(False)
    model, (batch,) = Network(), batches(1)
    loss_fn = lambda model, x: (model(x) - teacher(x)).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.0), batch, backend="nop")
    step(batch)
    change(teacher)
    torch.manual_seed(1)
    found = step(batch)
    torch.manual_seed(1)
    torch.testing.assert_close(found, loss_fn(model, batch).detach())


@dataclass
class Batch:
    x: torch.Tensor


def test_batches_may_be_objects_that_hold_tensors():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(3)
    step = precast.train_step(model, lambda m, b: loss_of(m, b.x), optimizer, Batch(data[0]), backend="nop")
    losses = [step(Batch(batch)) for batch in data]
    assert losses[0] > losses[-1]
    assert len(step._variants) == 1
    with pytest.raises(InputTypeError, match="holds a ndarray"):
        step([data[0].numpy()])


def test_many_kinds_of_batches_are_told(monkeypatch):
    monkeypatch.setattr(import_module("precast.training.train_step"), "_MANY", 2)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop")
    step(batches(1, rows=2)[0])
    with pytest.warns(UserWarning, match=r"compiled 2 times.*dynamic_shapes"):
        step(batches(1, rows=3)[0])
