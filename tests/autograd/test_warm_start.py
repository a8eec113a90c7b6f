import abc
import importlib
import inspect
import os
import random
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from os import getenv
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from precast.autograd import aot_function, aot_module
from precast.options import Options
from tests.autograd.stand_alone_compiler import StandAloneCompiler

FACTOR = 2.0
FACTORS = {"scale": 2.0}
CLOCKS = {"best": perf_counter}
REGISTERED: set[type] = set()


@pytest.fixture
def options(tmp_path):
    return Options(cache_directory=tmp_path / "cache")


@pytest.fixture
def start(options):
    """``start(function, *args)``: compile as a new process would, check against eager; gives how many were traced."""

    def run(function, *args, **kwargs):
        compiler = StandAloneCompiler(options)
        if isinstance(function, torch.nn.Module):
            compiled = aot_module(function, compiler)
        else:
            compiled = aot_function(function, compiler)
        torch.testing.assert_close(compiled(*args, **kwargs), function(*args, **kwargs))
        assert not (compiler.compiled and compiler.restored)
        # What is read anew at each call is not compiled at all.
        return compiler.compiled or not compiler.restored

    return run


def scaled(x):
    return x * FACTOR


def looked_up(x):
    return x * FACTORS["scale"]


def helper(x):
    return x + 1


def through_helper(x):
    return helper(x).sin()


@dataclass
class Record:
    total: torch.Tensor
    count: int
    kind: torch.dtype | None = None


def recorded(x, record, seen):
    record.total = record.total + x
    record.count += 1
    seen.append(x * 2)
    return record, Record(x * 2, 0, x.dtype)


class Level(IntEnum):
    LOW = 1


def leveled(x):
    return {"out": x + 1, "level": Level.LOW}


class Scale(torch.nn.Module):
    powers = (2,)

    def __init__(self, factor=2.0):
        super().__init__()
        self.config = SimpleNamespace(factor=factor, names=["a", "b"])

    def forward(self, x):
        return x * self.config.factor ** self.powers[0] + self.offset()

    def offset(self):
        return 1.0


class Child(Scale):
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(OrderedDict(linear=torch.nn.Linear(3, 3), scale=Scale()))

    def forward(self, x):
        return {"out": F.relu(self.layers(x)), "last": (x.sum(), None, 3)}


def ones():
    return torch.linspace(-1, 1, 6).view(2, 3)


def test_a_second_start_does_not_trace(start):
    net = Net()
    assert start(net, ones())
    assert not start(net, ones())


def test_a_second_start_returns_members_of_enumerations(options):
    for _ in range(2):
        assert type(aot_function(leveled, StandAloneCompiler(options))(ones())["level"]) is Level


def test_a_second_start_changes_the_callers_containers(options):
    for is_first in (True, False):
        compiler, record, seen = StandAloneCompiler(options), Record(ones(), 1), []
        result = aot_function(recorded, compiler)(ones(), record, seen)
        assert bool(compiler.compiled) is is_first
        assert (result[0] is record, result[1].kind) == (True, torch.float32)
        assert record.count == 2
        for found in (record.total, *seen, result[1].total):
            torch.testing.assert_close(found, ones() * 2)


def test_a_module_made_alike_starts_with_what_was_compiled_for_another(start):
    assert start(Net(), ones())
    assert not start(Net(), ones())


def test_gradients_come_from_the_restored_graphs(options):
    net = Net()
    expected = torch.autograd.grad(net(ones())["out"].sum(), list(net.parameters()))
    for times_compiled in (2, 0):
        compiler = StandAloneCompiler(options)
        out = aot_module(net, compiler)(ones())["out"]
        torch.testing.assert_close(torch.autograd.grad(out.sum(), list(net.parameters())), expected)
        assert compiler.compiled == times_compiled


def test_gradients_of_gradients_are_traced_when_asked_for(options):
    def cube(x, power):
        return (x**power).sum()

    for _ in range(2):
        compiler = StandAloneCompiler(options)
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(aot_function(cube, compiler)(x, 3), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        torch.testing.assert_close(second, 6 * x.detach())
    assert compiler.restored


def test_updates_of_buffers_happen_after_a_restored_start(options):
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        norm, eager = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
        compiler = StandAloneCompiler(options)
        aot_module(norm, compiler)(ones())
        eager(ones())
        torch.testing.assert_close(norm.running_mean, eager.running_mean)
        assert norm.num_batches_tracked == 1
        results.append(compiler.restored)
    assert results == [0, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.eval(),
        lambda net: net.requires_grad_(False),
        lambda net: setattr(net.layers.scale.config, "factor", 3.0),
        lambda net: net.layers.scale.config.names.append("c"),
        lambda net: setattr(net.layers.scale, "more", 1),
        lambda net: setattr(net.layers, "scale", Child()),
        lambda net: setattr(net.layers.scale, "offset", lambda: 5.0),
    ],
)
def test_a_changed_module_is_traced(start, change):
    net = Net()
    start(net, ones())
    change(net)
    assert start(net, ones())


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FACTOR", 3.0),
        ("FACTORS", {"scale": 3.0}),
        ("helper", lambda x: x + 2),
    ],
)
@pytest.mark.parametrize("function", [scaled, looked_up, through_helper])
def test_changed_globals_are_traced_by_those_who_read_them(start, monkeypatch, name, value, function):
    start(function, ones())
    monkeypatch.setitem(globals(), name, value)
    reads = {"FACTOR": scaled, "FACTORS": looked_up, "helper": through_helper}
    assert bool(start(function, ones())) == (reads[name] is function)


def test_contents_of_a_global_are_compared(start, monkeypatch):
    start(looked_up, ones())
    monkeypatch.setitem(FACTORS, "scale", 5.0)
    assert start(looked_up, ones())


def test_a_replaced_method_is_traced(start, monkeypatch):
    start(Net(), ones())
    monkeypatch.setattr(Scale, "offset", lambda self: 7.0)
    assert start(Net(), ones())


def test_a_method_that_hides_an_inherited_one_is_traced(start, monkeypatch):
    start(Child(), ones())
    monkeypatch.setattr(Child, "offset", lambda self: 7.0, raising=False)
    assert start(Child(), ones())


def test_a_changed_class_attribute_is_traced(start, monkeypatch):
    start(Scale(), ones())
    monkeypatch.setattr(Scale, "powers", (3,))
    assert start(Scale(), ones())


def importing_what_is_not_there(x):
    if x.dim() > 3:
        import package_that_is_not_there

        return package_that_is_not_there.double(x)
    return x * 2


def test_a_package_that_is_not_there_is_compared_by_its_absence(start, monkeypatch):
    x = torch.ones(2)
    assert start(importing_what_is_not_there, x)
    assert not start(importing_what_is_not_there, x)
    monkeypatch.setitem(sys.modules, "package_that_is_not_there", SimpleNamespace(double=lambda x: x * 2))
    assert start(importing_what_is_not_there, x)


def test_a_replaced_function_of_torch_is_traced(start, monkeypatch):
    start(Net(), ones())
    monkeypatch.setattr(F, "relu", lambda x: x.abs())
    assert start(Net(), ones())


def test_a_replaced_method_of_tensors_is_traced(start, monkeypatch):
    def run(x):
        return x.doubled()

    monkeypatch.setattr(torch.Tensor, "doubled", lambda self: self * 2, raising=False)
    start(run, ones())
    monkeypatch.setattr(torch.Tensor, "doubled", lambda self: self * 3, raising=False)
    assert start(run, ones())


def test_closures_and_defaults_are_compared(start):
    def make(factor, default):
        def run(x, more=default):
            return x * factor + more

        return run

    assert start(make(2, 1), ones())
    assert not start(make(2, 1), ones())
    assert start(make(3, 1), ones())
    assert start(make(2, 2), ones())


def test_arguments_are_compared(start):
    def run(x, other, factor=1, *, flags=()):
        return x * other * factor + len(flags)

    x = ones()
    calls = [
        ((x, ones()), {}),
        ((x, x), {}),
        ((x, ones()), {"factor": True}),
        ((x, ones()), {"factor": 1.0}),
        ((x, ones()), {"flags": (1, 2)}),
        ((x, ones().t().contiguous().t()), {}),
        ((x, ones().requires_grad_()), {}),
        ((x.double(), ones()), {}),
        ((x[:1], ones()), {}),
    ]
    assert all(start(run, *args, **kwargs) for args, kwargs in calls)
    assert not any(start(run, *args, **kwargs) for args, kwargs in calls)


def test_modes_around_the_call_are_compared(start):
    assert start(scaled, ones())
    with torch.autocast("cpu", torch.bfloat16):
        assert start(scaled, ones())
    with torch.inference_mode():
        assert start(scaled, ones())
    assert not start(scaled, ones())


def test_switches_of_torch_are_compared(start):
    start(scaled, ones())
    torch.use_deterministic_algorithms(True)
    try:
        assert start(scaled, ones())
    finally:
        torch.use_deterministic_algorithms(False)


def reads_environment(x):
    return x * float(os.environ.get("SOME_FACTOR", "2"))


def reads_environment_by_an_imported_name(x):
    return x * float(getenv("SOME_FACTOR", "2"))


@pytest.mark.parametrize("function", [reads_environment, reads_environment_by_an_imported_name])
def test_the_environment_counts_for_those_who_read_it(start, monkeypatch, function):
    start(function, ones())
    assert not start(function, ones())
    monkeypatch.setenv("SOME_FACTOR", "3")
    assert start(function, ones())


def reads_clock(x):
    return x + 0 * time.time()


def draws(x):
    return x + 0 * random.random()


def reads_file(x):
    with open(os.devnull) as file:
        return x + len(file.read())


def counts_calls(x):
    global FACTOR
    FACTOR = 2.0
    return x * FACTOR


def reads_command_line(x):
    return x + 0 * len(sys.argv)


def imports_by_name(x):
    return x * importlib.import_module("math").pi


def reads_its_callers(x):
    return x + 0 * len(inspect.stack())


def reads_clock_by_an_imported_name(x):
    return x + 0 * perf_counter()


def reads_clock_of_a_table(x):
    return x + 0 * CLOCKS["best"]()


def looks_for_a_file(x):
    return x + os.path.exists("somewhere")


def counts_threads(x):
    return x + torch.get_num_threads()


def counts_processes(x):
    return x + torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "function",
    [
        reads_clock, draws, reads_file, counts_calls, reads_command_line, imports_by_name, reads_its_callers,
        reads_clock_by_an_imported_name, reads_clock_of_a_table, looks_for_a_file, counts_threads, counts_processes,
    ],
)  # fmt: skip
def test_what_is_not_decided_by_code_and_inputs_is_traced_each_time(start, function):
    assert start(function, ones())
    assert start(function, ones())


class Kind(abc.ABC):  # noqa: B024
    pass


def asks_for_kind(x):
    return x * 2 if issubclass(Scale, Kind) else x * 3


def test_what_is_registered_with_an_abstract_class_is_compared(start):
    assert start(asks_for_kind, ones())
    assert not start(asks_for_kind, ones())
    Kind.register(Scale)
    assert start(asks_for_kind, ones())


def registers(x):
    if Scale not in REGISTERED:
        REGISTERED.add(Scale)
    return x + 1


def test_what_the_program_itself_changes_is_compared_as_it_was_before(start):
    REGISTERED.clear()
    assert start(registers, ones())
    REGISTERED.clear()
    assert not start(registers, ones())


def test_a_tensor_that_a_closure_holds_is_read_at_each_call(start):
    weight = torch.ones(3)

    def run(x):
        return x * weight

    assert start(run, ones())
    weight = torch.full((3,), 5.0)
    assert not start(run, ones())
    weight = torch.full((1,), 5.0)
    assert start(run, ones())


def test_which_tensors_of_pythons_state_are_one_is_compared(start):
    first = second = torch.ones(2, 3)

    def run(x, other):
        return (x * first - second * other + first).sin()

    x = ones()
    assert start(run, x, ones())
    second = torch.full((2, 3), 2.0)
    assert start(run, x, ones())
    first, second = second, first
    assert not start(run, x, ones())
    first = x
    assert start(run, x, ones())
    first = second[:]
    assert start(run, x, ones())


class WithoutModule(type):
    """As Cython's metaclass is: what stands for its module's name is a descriptor."""

    __module__ = type.__dict__["__module__"]


class OfStrangeKind(metaclass=WithoutModule):
    factor = 2


def reads_strange_class(x):
    return x * OfStrangeKind.factor


def test_classes_whose_metaclass_names_no_module_are_looked_at(start):
    assert not isinstance(WithoutModule.__module__, str)
    start(reads_strange_class, ones())


def test_hooks_are_traced(start):
    net = Net()
    start(net, ones())
    net.layers.linear.register_forward_hook(lambda module, args, output: output * 2)
    assert start(net, ones())
    assert start(net, ones())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return backward_formula(gradient, *ctx.saved_tensors)


def backward_formula(gradient, x):
    return gradient * 2 * x


def test_code_that_only_the_backward_runs_is_compared(options, monkeypatch):
    def gradient():
        x = torch.ones(2, requires_grad=True)
        aot_function(lambda x: Square.apply(x).sum(), StandAloneCompiler(options))(x).backward()
        return x.grad.tolist()

    assert gradient() == [2, 2]
    monkeypatch.setitem(globals(), "backward_formula", lambda gradient, x: gradient * 5 * x)
    assert gradient() == [5, 5]


def test_code_that_hooks_of_tensors_run_is_compared(options, monkeypatch):
    def run(x):
        y = x * 2
        y.register_hook(lambda gradient: backward_formula(gradient, 1))
        return y.sum()

    def gradient():
        x = torch.ones(2, requires_grad=True)
        aot_function(run, StandAloneCompiler(options))(x).backward()
        return x.grad.tolist()

    assert gradient() == [4, 4]
    monkeypatch.setitem(globals(), "backward_formula", lambda gradient, x: gradient * 5)
    assert gradient() == [10, 10]


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_under_someones_mode_calls_run_uncompiled(options):
    compiler = StandAloneCompiler(options)
    compiled = aot_function(scaled, compiler)
    with Quiet():
        torch.testing.assert_close(compiled(ones()), scaled(ones()))
    assert not compiler.compiled


def test_outputs_that_alias_inputs_still_do(start):
    x = ones()
    assert start(lambda x: x.t(), x)
    assert start(lambda x: x.t(), x)


class Unruly:
    @property
    def __dict__(self):
        raise ReferenceError("gone")


class Chain:
    def __init__(self, rest):
        self.rest = rest


def nested(depth):
    chain = None
    for _ in range(depth):
        chain = Chain(chain)
    return chain


@pytest.mark.parametrize("make", [Unruly, lambda: nested(5000), lambda: iter(()), lambda: (x for x in ())])
def test_a_module_that_holds_what_cannot_be_compared_is_traced(start, make):
    module = Scale()
    module.held = make()
    assert start(module, ones())
    assert start(module, ones())


class ByHash(Scale):
    def forward(self, x):
        return x + (self.config.own_hash > 0)


def test_a_hash_that_an_object_keeps_may_differ_where_no_code_reads_it(start):
    """Configurations of `transformers` keep one; Python makes other hashes of the same text in each process."""
    model, other = Scale(), Scale()
    model.config.own_hash, other.config.own_hash = hash("a") | 2**40, hash("b") | 2**40
    assert start(model, ones())
    assert not start(other, ones())


def test_code_that_reads_a_kept_hash_is_traced(start):
    model = ByHash()
    model.config.own_hash = 2**40
    start(model, ones())
    assert start(model, ones())


def by_size(x, factor):
    return x * factor if x.shape[0] > 8 else x - factor


@pytest.fixture
def start_dynamic(options):
    """The same for sizes and numbers that are symbols, gradients included."""

    def run(function, x, *others):
        compiler = StandAloneCompiler(options)
        x.requires_grad_()
        results = [each(x, *others) for each in (aot_function(function, compiler, dynamic=True), function)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x) for result in results))
        assert not (compiler.compiled and compiler.restored)
        return compiler.compiled

    return run


def test_sizes_and_numbers_that_are_symbols_may_be_others_in_the_next_process(start_dynamic):
    assert start_dynamic(by_size, torch.randn(5, 3), 4)
    assert not start_dynamic(by_size, torch.randn(6, 7), 5)
    # The other side of the condition, then either side.
    assert start_dynamic(by_size, torch.randn(9, 3), 4)
    assert not start_dynamic(by_size, torch.randn(20, 4), 3)
    assert not start_dynamic(by_size, torch.randn(8, 4), 3)


def test_a_tensor_that_is_like_a_number_is_none(start_dynamic):
    assert start_dynamic(by_size, torch.randn(5, 3), 0.5)
    assert start_dynamic(by_size, torch.randn(5, 3), torch.tensor(0.5, dtype=torch.float64))


def test_sizes_that_are_always_special_are_traced(start_dynamic):
    assert start_dynamic(by_size, torch.randn(5, 3), 4)
    assert start_dynamic(by_size, torch.randn(1, 3), 4)
    assert start_dynamic(by_size, torch.randn(3, 5).t(), 4)


def test_gradients_of_gradients_and_of_some_results_of_any_size_are_traced_when_asked_for(options):
    def run(x):
        return (x**3).sum(1), x.sin()

    for size in (5, 6):
        x = torch.randn(size, 3, requires_grad=True)
        compiled = aot_function(run, compiler := StandAloneCompiler(options), dynamic=True)
        (gradient,) = torch.autograd.grad(compiled(x)[0].sum(), x, create_graph=True)
        torch.testing.assert_close(gradient, 3 * x**2)
        torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], 6 * x)
        x = torch.randn(size + 4, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x)[1].sum(), x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], -x.sin())
    assert compiler.restored


def steps_of(make, options, count=3, *, change=lambda net, optimizer: None):
    """Parameters after some compiled steps of an optimizer and after as many of eager; and how many were traced."""
    found, compiler = [], StandAloneCompiler(options)
    for compile_step in (lambda step: aot_function(step, compiler), lambda step: step):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
        optimizer = make(net.parameters())
        change(net, optimizer)
        step = compile_step(optimizer.step)
        for _ in range(count):
            optimizer.zero_grad()
            net(ones()).square().sum().backward()
            step()
        found.append([each.detach().clone() for each in net.parameters()])
        found[-1] += [each for state in optimizer.state.values() for each in state.values()]
    torch.testing.assert_close(*found)
    return compiler.compiled


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ],
    ids=["AdamW", "SGD", "Adagrad"],
)
def test_steps_of_optimizers_start_without_a_trace(options, make):
    assert steps_of(make, options)
    assert not steps_of(make, options)


@pytest.mark.parametrize(
    "change",
    [
        lambda net, optimizer: optimizer.param_groups[0].update(lr=0.2),
        lambda net, optimizer: optimizer.param_groups[0].update(weight_decay=0.5),
        lambda net, optimizer: net[0].weight.requires_grad_(False),
        lambda net, optimizer: optimizer.param_groups[0]["params"].pop(1),
        lambda net, optimizer: optimizer.param_groups[0]["params"].reverse(),
        lambda net, optimizer: optimizer.register_step_pre_hook(lambda *_: None),
    ],
)
def test_a_changed_optimizer_is_traced(options, change):
    def make(parameters):
        return torch.optim.AdamW(parameters, lr=0.1)

    assert steps_of(make, options)
    assert steps_of(make, options, change=change)
    assert not steps_of(make, options)


def test_tensors_added_to_pythons_state_are_added_after_a_restored_start(options):
    def adding_to(seen, named):
        def run(x):
            seen.append(x * 2)
            named["last"] = (x * 3, 4)
            return x + 1

        return run

    for is_first in (True, False):
        compiler, seen, named = StandAloneCompiler(options), [], {}
        compiled = aot_function(adding_to(seen, named), compiler)
        torch.testing.assert_close(compiled(ones()), ones() + 1)
        assert bool(compiler.compiled) is is_first
        torch.testing.assert_close((seen, named), ([ones() * 2], {"last": (ones() * 3, 4)}))
