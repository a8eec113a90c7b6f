"""Numbers that keep changing become inputs; what a program writes into Python's state happens after every call."""

import dataclasses
import threading
import types

import pytest
import torch
from torch import nn

import precast
from precast.autograd import aot_function, aot_module
from precast.compilers import nop

X = torch.linspace(-1, 1, 8).reshape(2, 4)
TOTAL = 0
SEEN = []


def compilations(compiled):
    return len(precast.variants(compiled))


@pytest.mark.parametrize("dynamic", [None, False])
def test_an_int_argument_compiles_twice_for_all_its_values(dynamic):
    def denoise(x, t):
        return x * t + (torch.arange(4) * t).sin()

    compiled = aot_function(denoise, nop, dynamic=dynamic)
    for t in (0, 1, 2, 999, 500, 0, 1):
        assert torch.equal(compiled(X, t), denoise(X, t))
    assert compilations(compiled) == 2


def test_with_dynamic_numbers_are_inputs_at_once():
    compiled = aot_function(lambda x, t, lr: x * t - lr * x, nop, dynamic=True)
    for t in range(4):
        assert torch.equal(compiled(X, t, t / 7), X * t - t / 7 * X)
    assert compilations(compiled) == 1


def test_decisions_on_a_number_are_guards():
    def decide(x, t):
        return x * t if t > 10 else x - t

    compiled = aot_function(decide, nop)
    for t in (1, 2, 30, 40, 3, 50, 4):
        assert torch.equal(compiled(X, t), decide(X, t))
    assert compilations(compiled) == 3


@pytest.mark.parametrize("value", [-3, True, 2.5, "2"])
def test_an_argument_that_is_no_such_number_any_more(value):
    def function(x, t):
        return x * float(t)

    compiled = aot_function(function, nop)
    for t in (1, 2, 3, value, 4):
        assert torch.equal(compiled(X, t), function(X, t))


def test_a_float_argument_keeps_the_rules_of_python_numbers():
    def function(x, scale):
        return x * scale, x.sum() * scale, (x > 0).int() * scale, scale * 2

    compiled = aot_function(function, nop)
    for scale in (0.1, 0.2, 0.3, 0.7):
        *ours, number = compiled(X, scale)
        *theirs, expected = function(X, scale)
        assert all(map(torch.equal, ours, theirs))
        assert [each.dtype for each in ours] == [each.dtype for each in theirs]
        assert number == expected
        assert type(number) is float
    assert compilations(compiled) == 2


def test_an_annealed_attribute_compiles_twice():
    class Tempered(nn.Module):
        temperature = 1.0

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.temperature = 1.0

        def forward(self, x):
            return torch.softmax(self.linear(x) / self.temperature, -1)

    module = Tempered()
    compiled = aot_module(module, nop)
    x = X.clone().requires_grad_()
    for step in range(6):
        module.temperature = 1.0 / (step + 1)
        ours, theirs = compiled(x), module(x)
        assert torch.equal(ours, theirs)
        gradients = [torch.autograd.grad(each.square().sum(), x)[0] for each in (ours, theirs)]
        assert torch.equal(*gradients)
    assert compilations(compiled) == 2


def test_numbers_that_cannot_be_inputs_are_constants():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    compiled = aot_module(module, nop)
    for probability in (0.1, 0.2, 0.3):
        module[1].p = probability
        results = []
        for each in (module, compiled):
            torch.manual_seed(1)
            results.append(each(X))
        assert torch.equal(*results)
    assert compilations(compiled) == 3


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.config = types.SimpleNamespace(calls=0)
        self.modes = {"train": 0, "eval": 0}
        self.name = "new"

    def forward(self, x):
        global TOTAL
        TOTAL += 1
        self.calls += 1
        self.config.calls += 2
        self.modes["train" if self.training else "eval"] += 1
        self.name = "used"
        return x * self.calls


def test_a_module_that_counts_its_calls_counts_on_and_compiles_twice():
    global TOTAL
    TOTAL = 0
    module = Counting()
    compiled = aot_module(module, nop)
    for step in range(1, 7):
        assert torch.equal(compiled(X), X * step)
        assert (module.calls, module.config.calls, module.modes["train"], TOTAL) == (step, 2 * step, step, step)
        assert module.name == "used"
        assert type(module.calls) is int
    assert compilations(compiled) == 2


def test_a_trace_that_fails_leaves_state_as_it_was():
    module = Counting()

    def fail(x):
        module(x)
        SEEN.append(x)
        raise ZeroDivisionError

    before = TOTAL
    with pytest.raises(ZeroDivisionError):
        aot_function(fail, nop)(X)
    assert (module.calls, module.config.calls, TOTAL, SEEN) == (0, 0, before, [])


def test_tensors_that_are_appended_to_a_list_are_real_and_compile_once():
    seen = []

    def function(x):
        seen.append(x.sum())
        SEEN.append(x * 2)
        return x + 1

    compiled = aot_function(function, nop)
    for step in range(4):
        compiled(X * step)
    assert [float(each) for each in seen] == [float((X * step).sum()) for step in range(4)]
    assert all(torch.equal(each, X * step * 2) for step, each in enumerate(SEEN))
    SEEN.clear()
    assert compilations(compiled) == 1


def test_activations_that_a_hook_collects():
    found = {}
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    module[0].register_forward_hook(lambda _, args, output: found.__setitem__("first", output.detach()))
    compiled = aot_module(module, nop)
    for step in range(3):
        compiled(X * step)
        assert torch.equal(found["first"], nn.functional.linear(X * step, *module[0].parameters()))


def test_a_list_that_is_read_is_read_as_it_is():
    history = []

    def function(x):
        history.append(1)
        return x * len(history)

    compiled = aot_function(function, nop)
    for step in range(1, 4):
        assert torch.equal(compiled(X), X * step)


def test_a_tensor_kept_in_an_object_is_there_for_the_next_call():
    memory = types.SimpleNamespace(last=None)

    def function(x):
        result = x if memory.last is None else x + memory.last
        memory.last = result * 2
        return result

    compiled = aot_function(function, nop)
    last = None
    for _ in range(4):
        expected = X if last is None else X + last
        assert torch.equal(compiled(X), expected)
        last = expected * 2
        assert torch.equal(memory.last, last)
    assert compilations(compiled) == 2


def test_sizes_and_objects_that_are_kept_hold_nothing_of_the_trace():
    kept = {}

    def function(x):
        kept["shape"], kept["rows"] = x.shape, [x.shape[0], {"half": x.shape[0] // 2}]
        kept["object"] = types.SimpleNamespace(total=x.sum(), name="sum")
        return x * 2

    compiled = aot_function(function, nop, dynamic=True)
    for rows in (4, 6, 9):
        x = torch.ones(rows, 2)
        compiled(x)
        assert kept["shape"] == (rows, 2)
        assert kept["rows"] == [rows, {"half": rows // 2}]
        assert type(kept["rows"][0]) is int
        assert (float(kept["object"].total), kept["object"].name) == (2.0 * rows, "sum")


def test_a_module_that_installs_hooks_at_its_first_call():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.is_installed = False

        def forward(self, x):
            if not self.is_installed:
                self.linear.register_forward_hook(lambda _, args, output: output * 3)
                self.is_installed = True
            return self.linear(x)

    module = Lazy()
    compiled = aot_module(module, nop)
    for _ in range(3):
        assert torch.equal(compiled(X), nn.functional.linear(X, *module.linear.parameters()) * 3)
    assert len(module.linear._forward_hooks) == 1
    assert compilations(compiled) == 2


def _written_at(x, t):
    result = x.clone()
    result[t] = t
    result[t + 1, 0] = 5.0
    return result


TABLE = torch.arange(90.0).reshape(10, 3, 3)
AS_DATA = {
    "tensor": lambda x, t: x * torch.tensor([t]),
    "tensor without dimensions": lambda x, t: x * torch.tensor(t),
    "nested lists": lambda x, t: x[:2, :2] * torch.tensor([[t, 1], [2, t]]),
    "other dtype": lambda x, t: x * torch.as_tensor(t, dtype=torch.float64),
    "like another": lambda x, t: x * x.new_tensor([t, 0, 1]),
    "row": lambda x, t: x[:3] + TABLE[t],
    "row from the end": lambda x, t: x[:3] + TABLE[-t - 1],
    "among others": lambda x, t: x[:3] + TABLE[None, t, ..., 1],
    "two of them": lambda x, t: x[:3, 0] + TABLE[t, :, t // 4],
    "slice": lambda x, t: x[:3] + TABLE[: t + 2].sum(0),
    "write": _written_at,
}


@pytest.mark.parametrize("name", AS_DATA)
def test_an_int_that_becomes_data_or_an_index_is_compiled_at_most_twice(name):
    function, x = AS_DATA[name], torch.rand(10, 3)
    compiled = precast.compile(function, backend="nop")
    for step in range(8):
        expected, found = function(x, step), compiled(x, step)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert len(precast.variants(compiled)) == 2


class Slotted:
    __slots__ = ("scale",)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    scale: int = 1


def test_numbers_whose_place_is_gone_are_not_put_there():
    """While a call was traced, None was written into all places that had ever held a changing number."""
    local, slotted, table = threading.local(), Slotted(), {}

    def program(x):
        return x * getattr(local, "scale", 5) * getattr(slotted, "scale", 7) + sum(map(len, table)) + table.get("a", 9)

    compiled = precast.compile(program, backend="nop")
    for number in (2, 3, 4):
        local.scale = slotted.scale = table["a"] = number
        assert torch.equal(compiled(X), program(X))
    found = []
    thread = threading.Thread(target=lambda: found.append((compiled(X), program(X), vars(local))))
    thread.start()
    thread.join()
    (ours, eager, held), *_ = found
    assert torch.equal(ours, eager)
    assert not held
    del slotted.scale, table["a"]
    assert torch.equal(compiled(X), program(X))
    assert not hasattr(slotted, "scale")
    assert not table


def test_changing_numbers_of_frozen_objects_and_all_others_beside_them():
    """A place that could not be written left symbols in those that were written before it."""
    module = Holder()
    compiled = precast.compile(module, backend="nop")
    for number in (2, 3, 4, 5):
        module.first, module.last = number, number + 1
        object.__setattr__(module.settings, "scale", number)
        assert torch.equal(compiled(X), module(X))
        assert type(module.first) is type(module.last) is type(module.settings.scale) is int


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.settings, self.last = 1, Settings(), 1

    def forward(self, x):
        return x * self.first * self.settings.scale * self.last


def test_an_index_out_of_range_is_refused_as_in_eager():
    compiled, x = precast.compile(lambda x, t: x + TABLE[t], backend="nop"), torch.rand(3, 3)
    for step in range(4):
        compiled(x, step)
    # The words are torch's own, and differ between its versions.
    with pytest.raises(IndexError, match=r"index 10 (is )?out of (bounds|range)"):
        compiled(x, 10)


def test_floats_that_become_data_are_inputs():
    compiled, x = precast.compile(lambda x, t: x * torch.tensor([t, 1.0, 2.0]), backend="nop"), torch.rand(2, 3)
    for step in range(5):
        assert torch.equal(compiled(x, step / 3), x * torch.tensor([step / 3, 1.0, 2.0]))
    assert len(precast.variants(compiled)) == 2
