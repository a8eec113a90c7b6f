"""What a trace assumed of Python's state is checked at every call: changes are seen, all else compiles nothing."""

import argparse
import copy
import enum
import functools
import logging
import types
from collections import OrderedDict, defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

import precast
from precast.autograd import aot_function, aot_module
from precast.compilers import nop
from precast.errors import InputTypeError

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Act(enum.Enum):
    RELU = "relu"
    TANH = "tanh"


@dataclass
class Config:
    scale: float = 2.0
    names: list = field(default_factory=lambda: ["relu", "tanh"])
    unread: int = 0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


FACTOR = 2.0
TABLE = {"a": [1.0, 2.0]}
SHIFT = ContextVar("shift", default=0.0)


def shifted(x, by=0.5):
    return x + by


class Net(nn.Module):
    bias = 0.25

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2
        self.mode = Act.RELU
        self.config = Config()
        self.slotted = Slotted()
        self.namespace = types.SimpleNamespace(power=1)
        self.arguments = argparse.Namespace(depth=1)
        self.nested = {"weights": [1.0, {"last": 2.0}], 3: (1, [2])}
        self.ordered = OrderedDict(a=1.0, b=2.0)
        self.standing = defaultdict(float, a=1.0)
        self.queue = deque([1.0, 2.0])
        self.chosen = {"scaled"}
        self.array = np.array([1.0, 2.0])
        self.function = shifted
        self.steps = 0

    def forward(self, x):
        x = self.drop(self.batch_norm(self.norm(self.first(x)))) * self.scale + self.bias
        x = x.relu() if self.mode is Act.RELU else x.tanh()
        x = getattr(x, self.config.names[0])() * self.config.scale * self.slotted.scale
        for _ in range(self.arguments.depth):
            x = x**self.namespace.power
        x = x * self.nested["weights"][1]["last"] * self.nested[3][1][0]
        x = (
            x
            + sum(self.ordered.values()) * next(iter(self.ordered.values())) * self.standing["a"]
            + self.queue[-1] * float(self.array[1])
        )
        x = x * 2 if "scaled" in self.chosen else x
        return self.function(x) * FACTOR * TABLE["a"][1] + SHIFT.get()


def results(module, x=X):
    torch.manual_seed(3)
    return module(x)


def set_item(holder, key, value):
    holder[key] = value


def set_global(name, value):
    globals()[name] = value


CHANGES = {
    "an int": lambda m: setattr(m, "scale", 3),
    "the type of a number": lambda m: (setattr(m, "scale", 2.0), m.double()),
    "the probability of a dropout": lambda m: setattr(m.drop, "p", 0.1),
    "the eps of a layer norm": lambda m: setattr(m.norm, "eps", 0.5),
    "the momentum of a batch norm": lambda m: setattr(m.batch_norm, "momentum", 0.9),
    "an enum": lambda m: setattr(m, "mode", Act.TANH),
    "a config": lambda m: setattr(m.config, "scale", 3.0),
    "a name that is looked up": lambda m: set_item(m.config.names, 0, "tanh"),
    "another config": lambda m: setattr(m, "config", Config(5.0)),
    "an attribute in a slot": lambda m: setattr(m.slotted, "scale", 3.0),
    "a namespace": lambda m: setattr(m.namespace, "power", 2),
    "a namespace of arguments": lambda m: setattr(m.arguments, "depth", 3),
    "an entry of a nested dict": lambda m: set_item(m.nested["weights"][1], "last", 5.0),
    "an item of a list in a tuple": lambda m: set_item(m.nested[3][1], 0, 7),
    "the order of entries": lambda m: m.ordered.move_to_end("a"),
    "one entry more": lambda m: set_item(m.ordered, "c", 3.0),
    "an entry of a defaultdict": lambda m: set_item(m.standing, "a", 3.0),
    "a queue": lambda m: m.queue.append(9.0),
    "a set": lambda m: m.chosen.clear(),
    "an array": lambda m: set_item(m.array, 1, 7.0),
    "a class attribute hidden": lambda m: setattr(m, "bias", 4.0),
    "a function": lambda m: setattr(m, "function", lambda x: x - 1),
    "forward itself": lambda m: setattr(m, "forward", lambda x: x * 2),
    "a submodule": lambda m: setattr(m, "drop", nn.Tanh()),
    "a hook": lambda m: m.first.register_forward_hook(lambda module, args, output: output * 3),
    "a hook before": lambda m: m.norm.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_a_module_are_seen(change):
    torch.manual_seed(0)
    module = Net()
    compiled = aot_module(module, nop)
    assert torch.equal(results(compiled), results_of_copy(module))
    change(module)
    x = X.to(module.first.weight.dtype)
    expected = results_of_copy(module, x)
    assert torch.equal(results(compiled, x), expected)


def results_of_copy(module, x=X):
    """What eager gives, without touching statistics that the compiled one is to update as well."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    result = results(module, x)
    module.load_state_dict(state)
    return result


@pytest.fixture
def put_back():
    before = {name: copy.deepcopy(globals()[name]) for name in ("FACTOR", "TABLE")} | {"shifted": shifted}
    defaults, bias, token = shifted.__defaults__, Net.bias, SHIFT.set(0.0)
    yield
    globals().update(before)
    shifted.__defaults__, Net.bias = defaults, bias
    SHIFT.reset(token)


GLOBAL_CHANGES = {
    "a global": lambda: set_global("FACTOR", 5.0),
    "an item of a global": lambda: set_item(TABLE["a"], 1, 7.0),
    "a global replaced": lambda: set_global("TABLE", {"a": [0.0, 3.0]}),
    "a class attribute": lambda: setattr(Net, "bias", 9.0),
    "a default": lambda: setattr(shifted, "__defaults__", (4.0,)),
    "a context variable": lambda: SHIFT.set(3.0),
}


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize("change", GLOBAL_CHANGES.values(), ids=GLOBAL_CHANGES)
def test_changes_outside_of_the_module_are_seen(change):
    torch.manual_seed(0)
    module = Net().eval()
    compiled = aot_module(module, nop)
    assert torch.equal(results(compiled), results(module))
    change()
    assert torch.equal(results(compiled), results(module))


def test_closures_are_seen():
    scale, weights = 2.0, {"a": 1.0}

    def inner(x):
        return x * scale * weights["a"]

    @functools.wraps(inner)
    def outer(x):
        return inner(x) + 1

    def change(value):
        nonlocal scale
        scale = value

    compiled = aot_function(outer, nop)
    assert torch.equal(compiled(X), outer(X))
    change(5.0)
    assert torch.equal(compiled(X), outer(X))
    weights["a"] = 3.0
    assert torch.equal(compiled(X), outer(X))


def test_tensors_in_containers_are_read_afresh():
    table = {"weights": [torch.ones(4), torch.ones(4)]}
    compiled = aot_function(lambda x: x * table["weights"][0] + table["weights"][1], nop)
    compiled(X)
    table["weights"][0] = torch.full((4,), 3.0)
    assert torch.equal(compiled(X), X * 3 + 1)
    table["weights"] = [torch.full((4,), 2.0), torch.zeros(4)]
    assert torch.equal(compiled(X), X * 2)


def test_one_tensor_in_two_places_that_become_two():
    shared = torch.full((4,), 2.0)
    places = types.SimpleNamespace(a=shared, b=shared)
    compiled = aot_function(lambda x: x * places.a + places.b, nop)
    assert torch.equal(compiled(X), X * 2 + 2)
    places.b = torch.ones(4)
    assert torch.equal(compiled(X), X * 2 + 1)


def test_a_parameter_in_a_list_stays_when_the_module_gets_another():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 2.0))
            self.also = [self.weight]

        def forward(self, x):
            return x * self.weight + self.also[0]

    module = Listed()
    compiled = aot_module(module, nop)
    assert torch.equal(compiled(X), module(X))
    module.weight = nn.Parameter(torch.ones(4))
    assert torch.equal(compiled(X), module(X))


@pytest.mark.parametrize("swap", [lambda m: m.reverse(), lambda m: set_item(m, 1, m[0])], ids=["order", "sharing"])
def test_how_equal_submodules_are_nested(swap):
    class Two(nn.ModuleList):
        def reverse(self):
            self[0], self[1] = self[1], self[0]

        def forward(self, x):
            return self[1](self[0](x))

    module = Two([nn.Tanh(), nn.Hardtanh(-0.5, 0.5)])
    compiled = aot_module(module, nop)
    assert torch.equal(compiled(X), module(X))
    swap(module)
    assert torch.equal(compiled(X), module(X))


def test_which_parameters_are_tied():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.Parameter(torch.full((4,), 2.0))
            self.c = nn.Parameter(torch.full((4,), 3.0))

        def forward(self, x):
            return (x * self.a + self.b) * self.c

    module = Three()
    compiled = aot_module(module, nop)
    assert torch.equal(compiled(X), module(X))
    module.b = module.c
    assert torch.equal(compiled(X), module(X))


def test_two_parameters_that_become_one():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    compiled = aot_module(module, nop)
    assert torch.equal(compiled(X), module(X))
    module[2].weight = module[0].weight
    assert torch.equal(compiled(X), module(X))
    gradients = [torch.autograd.grad(each(X).sum(), module.parameters()) for each in (compiled, module)]
    assert all(map(torch.equal, *gradients))


def test_parametrizations_come_and_go():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = aot_module(module, nop)
    assert torch.equal(compiled(X), module(X))
    nn.utils.parametrizations.weight_norm(module[0])
    torch.testing.assert_close(compiled(X), module(X))
    nn.utils.parametrize.remove_parametrizations(module[0], "weight")
    assert torch.equal(compiled(X), module(X))


def test_what_is_not_read_does_not_compile_again():
    module = Net().eval()
    compiled = aot_module(module, nop)
    for step in range(4):
        module.steps = step
        module.history = [step]
        module.config.unread = step
        module.first.comment = str(step)
        compiled(X)
    assert len(precast.variants(compiled)) == 1


def test_equal_values_do_not_compile_again():
    module = Net().eval()
    compiled = aot_module(module, nop)
    for _ in range(3):
        module.config.scale = float("2.0")
        module.mode = Act("relu")
        module.norm.normalized_shape = tuple(map(int, "4"))
        module.nested["weights"][0] = float("1.0")
        compiled(X)
    assert len(precast.variants(compiled)) == 1


def test_variants_that_were_compiled_are_found_again():
    module = Net().eval()
    compiled = aot_module(module, nop)
    for act in (Act.RELU, Act.TANH, Act.RELU, Act.TANH):
        module.mode = act
        assert torch.equal(compiled(X), module(X))
    assert len(precast.variants(compiled)) == 2


def test_reasons_are_told(caplog):
    module = Net().eval()
    compiled = aot_module(module, nop)
    compiled(X)
    module.mode, module.config.names[0] = Act.TANH, "tanh"
    with caplog.at_level(logging.INFO, logger="precast.autograd"):
        compiled(X)
    reason = "Net.mode was <Act.RELU: 'relu'>, is <Act.TANH: 'tanh'>; Net.config.names[0] was 'relu', is 'tanh'"
    assert reason in caplog.text
    first, second = precast.variants(compiled)
    assert (first.reason, second.reason) == ("the first call", reason)
    assert first.inputs == ("x: float32[3, 4]",)
    assert "Net.config.names[0] is 'relu'" in first.guards
    assert "Net.config.names[0] is 'tanh'" in second.guards
    assert reason in str(second)


def test_reasons_name_arguments():
    compiled = aot_function(lambda x, mask: x * mask, nop)
    compiled(X, X * 1)
    compiled(X, X.double())
    compiled(X, X)
    reasons = [each.reason for each in precast.variants(compiled)]
    assert reasons[1:] == [
        "mask (dtype torch.float32, then torch.float64)",
        "which arguments are one tensor; mask (dtype torch.float64, then torch.float32)",
    ]


def test_only_compiled_things_have_variants():
    with pytest.raises(InputTypeError, match="not compiled"):
        precast.variants(nn.Linear(2, 2))


def test_a_debugger_at_work_keeps_changes_from_being_missed(monkeypatch):
    monkeypatch.setattr("sys.gettrace", lambda: object())
    module = Net().eval()
    compiled = aot_module(module, nop)
    compiled(X)
    module.config.scale = 5.0
    assert torch.equal(compiled(X), module(X))


def test_state_of_a_compiled_function_called_inside_of_another():
    module = Net().eval()
    compiled = aot_module(module, nop)
    outer = aot_function(lambda x: compiled(x) + 1, nop)
    assert torch.equal(outer(X), module(X) + 1)
    module.config.scale = 5.0
    assert torch.equal(outer(X), module(X) + 1)


@pytest.mark.parametrize("change", ["power", "forward hook", "weights"])
def test_gradients_of_gradients_of_a_call_made_before_a_change(change):
    class Power(nn.Module):
        power = 3

        def __init__(self):
            super().__init__()
            self.weights = [1, 2]

        def forward(self, x):
            return (x**self.power).sum() * sum(self.weights)

    module = Power()
    compiled = aot_module(module, nop)
    x = torch.full((2,), 2.0, requires_grad=True)
    result = compiled(x)
    if change == "power":
        module.power = 4
    elif change == "weights":
        module.weights.append(3)
    else:
        module.register_forward_hook(lambda *_: 0 * x.sum())
    (first,) = torch.autograd.grad(result, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(first, 9 * x**2)
    assert torch.equal(second, 18 * x)
    assert torch.equal(compiled(x), module(x))


class Answering:
    """Has every attribute, each another object of its kind."""

    def __init__(self, answer=1):
        self.answer = answer

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Answering()


def test_objects_that_have_every_attribute_are_looked_at_once():
    holder = Answering(2)

    def function(x):
        return x * holder.answer

    compiled = precast.compile(function, backend="nop")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    holder.answer = 3
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


class Echo(Answering):
    def __getattr__(self, name):
        return Echo()


def test_objects_that_are_made_for_who_asks_do_not_go_on_for_ever():
    holder = Echo(2)

    def function(x):
        return x * holder.answer

    compiled = precast.compile(function, backend="nop")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_tensors_that_come_as_keys_are_told_by_their_number():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    compiled = precast.compile(optimizer.step, backend="nop")
    for _ in range(2):
        for each in parameters:
            each.grad = torch.ones(2)
        compiled()
    reasons = [variant.reason for variant in precast.variants(compiled)]
    assert any("has 3 tensors as keys now" in reason for reason in reasons), reasons
