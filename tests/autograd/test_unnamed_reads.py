"""State that is read without being named in the code that runs: by Python itself, by torch, or by a name made up."""

import copy
import functools
import importlib
import operator
import struct
import sys
import threading
from array import array
from collections import ChainMap
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch

import precast
from precast.autograd import aot_function
from precast.options import Options
from precast.trace.capture import capture
from tests.autograd.stand_alone_compiler import StandAloneCompiler


def _special_method(name, *answers):
    """An object whose class has a method that Python calls, and a way to exchange it."""
    kind = type("Kind", (), {} if answers[0] is None else {name: lambda self, *_: answers[0]})
    return kind(), lambda i: setattr(kind, name, lambda self, *_: answers[i])


def _number(add, change):
    return lambda x: x + add(), change


def _addition():
    one, change = _special_method("__add__", 1.0, 2.0, 3.0)
    return _number(lambda: one + 5.0, change)


def _length():
    one, change = _special_method("__len__", 1, 2, 3)
    return _number(lambda: len(one), change)


def _truth():
    one, change = _special_method("__bool__", None, False, True)
    return _number(lambda: 1.0 if one else 2.0, change)


def _iteration():
    kind = type("Kind", (), {"__iter__": lambda self: iter([1.0])})
    one = kind()
    return _number(lambda: sum(one), lambda i: setattr(kind, "__iter__", lambda self: iter([1.0, i])))


def _item():
    one, change = _special_method("__getitem__", 1.0, 2.0, 3.0)
    return _number(lambda: one["any"], change)


def _context():
    kind = type("Kind", (), {"__enter__": lambda self: 1.0, "__exit__": lambda self, *_: None})
    one = kind()

    def program(x):
        with one as number:
            return x + number

    return program, lambda i: setattr(kind, "__enter__", lambda self: i * 3.0)


def _descriptor():
    descriptor, change = _special_method("__get__", 1.0, 2.0, 3.0)
    one = type("Kind", (), {"level": descriptor})()
    return _number(lambda: one.level, change)


def _metaclass():
    meta = type("Meta", (type,), {"level": 1.0})
    kind = meta("Kind", (), {})
    return _number(lambda: kind.level, lambda i: setattr(meta, "level", i + 1.0))


def _levels():
    return SimpleNamespace(inner=SimpleNamespace(level=1.0))


def _getter():
    levels, read = _levels(), operator.attrgetter("inner.level")
    return _number(lambda: read(levels), lambda i: setattr(levels.inner, "level", i + 1.0))


def _getter_inside():
    levels = _levels()
    return _number(
        lambda: operator.attrgetter("inner.level")(levels), lambda i: setattr(levels.inner, "level", i + 1.0)
    )


def _getter_in_an_attribute():
    levels = _levels()
    levels.read = operator.attrgetter("level")
    return _number(lambda: levels.read(levels.inner), lambda i: setattr(levels.inner, "level", i + 1.0))


def _getattribute():
    levels, name = _levels(), "".join(["le", "vel"])
    return _number(
        lambda: object.__getattribute__(levels.inner, name), lambda i: setattr(levels.inner, "level", i + 1.0)
    )


def _renamed_getattr():
    levels, name, read = _levels(), "".join(["le", "vel"]), getattr
    return _number(lambda: read(levels.inner, name), lambda i: setattr(levels.inner, "level", i + 1.0))


def _format():
    levels = _levels()
    return _number(
        lambda: float("{.inner.level:.1f}".format(levels)),  # noqa: UP032
        lambda i: setattr(levels.inner, "level", i + 1.0),
    )


def _equality():
    one, other = SimpleNamespace(level=1), SimpleNamespace(level=2)
    return _number(lambda: 1.0 if one == other else 2.0, lambda i: setattr(one, "level", i + 1))


@dataclass
class Setting:
    kind: int = 0
    level: float = 1.0


def _match_by_name():
    setting = Setting()

    def program(x):
        match setting:
            case Setting(kind=0):
                return x
            case Setting(kind=number):
                return x + number

    return program, lambda i: setattr(setting, "kind", i)


def _match_by_position():
    setting = Setting()

    def program(x):
        match setting:
            case Setting(0, number):
                return x + number
            case Setting(number):
                return x - number

    return program, lambda i: setattr(setting, "level" if i == 1 else "kind", i * 2)


def _method_of_autograd():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Scaled.apply, lambda i: setattr(Scaled, "forward", staticmethod(lambda ctx, x: x * i))


def _code():
    def add(x):
        return x + 1

    codes = [add.__code__, (lambda x: x + 2).__code__, (lambda x: x + 3).__code__]
    return lambda x: add(x), lambda i: setattr(add, "__code__", codes[i])


def _chain_of_maps():
    below = {"level": 1.0}
    chain = ChainMap({}, below)
    return _number(lambda: chain["level"], lambda i: below.update(level=i + 1.0))


def _module_in_a_variable():
    settings = ModuleType("settings_of_a_test")
    settings.level = 1.0
    return _number(lambda: settings.level, lambda i: setattr(settings, "level", i + 1.0))


def _of_a_thread():
    local = threading.local()
    local.level = 1.0
    return _number(lambda: local.level, lambda i: setattr(local, "level", i + 1.0))


def _numbers_in_memory(holder):
    return _number(lambda: holder[0], lambda i: holder.__setitem__(0, i + 2))


def _switch(read, *changes):
    return _number(lambda: float(hash(read())), lambda i: changes[i - 1]())


def _determinism():
    return _switch(
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(mode=True),
        lambda: torch.use_deterministic_algorithms(mode=False),
    )


def _threads():
    count = torch.get_num_threads()
    return _switch(
        torch.get_num_threads, lambda: torch.set_num_threads(count + 1), lambda: torch.set_num_threads(count)
    )


def _precision():
    return _switch(
        lambda: torch.get_float32_matmul_precision() == "high",
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("highest"),
    )


def _setting_of_a_backend():
    # Set below torch's attribute, which torch's own test utilities freeze.
    return _switch(
        lambda: torch.backends.cudnn.benchmark,
        lambda: torch._C._set_cudnn_benchmark(True),
        lambda: torch._C._set_cudnn_benchmark(False),
    )


CASES = {
    "deterministic algorithms": _determinism,
    "number of threads": _threads,
    "precision of products": _precision,
    "setting of a backend": _setting_of_a_backend,
    "addition": _addition,
    "length": _length,
    "truth that comes": _truth,
    "iteration": _iteration,
    "item": _item,
    "context": _context,
    "descriptor": _descriptor,
    "metaclass": _metaclass,
    "attrgetter": _getter,
    "attrgetter made inside": _getter_inside,
    "attrgetter in an attribute": _getter_in_an_attribute,
    "object.__getattribute__": _getattribute,
    "getattr by another name": _renamed_getattr,
    "format": _format,
    "equality of namespaces": _equality,
    "match by name": _match_by_name,
    "match by position": _match_by_position,
    "forward of an autograd.Function": _method_of_autograd,
    "code of a function": _code,
    "ChainMap": _chain_of_maps,
    "module in a variable": _module_in_a_variable,
    "attribute of a thread": _of_a_thread,
    "array": lambda: _numbers_in_memory(array("d", [1.0])),
    "bytearray": lambda: _numbers_in_memory(bytearray([1])),
    "memoryview": lambda: _numbers_in_memory(memoryview(bytearray([1]))),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen(case):
    program, change = CASES[case]()
    compiled, x = precast.compile(program, backend="nop"), torch.arange(3.0)
    for i in (1, 2):
        expected = program(x)
        for _ in range(2):
            assert torch.equal(compiled(x), expected)
        change(i)
        assert not torch.equal(program(x), expected), "the change matters"
    assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_compiled_twice_without_a_change(case):
    program, _ = CASES[case]()
    compiled = precast.compile(program, backend="nop")
    for _ in range(3):
        compiled(torch.arange(3.0))
    assert len(precast.variants(compiled)) == 1


def test_what_copying_leaves_on_a_class_is_no_change():
    setting = Setting()
    compiled = precast.compile(lambda x: x * setting.level, backend="nop")
    compiled(torch.ones(2))
    copy.copy(setting)
    compiled(torch.ones(2))
    assert len(precast.variants(compiled)) == 1


def test_every_thread_has_attributes_of_its_own():
    local, results = threading.local(), []
    local.level = 1.0
    compiled = precast.compile(lambda x: x * local.level, backend="nop")
    assert compiled(torch.ones(1)).item() == 1

    def run():
        local.level = 5.0
        results.append(compiled(torch.ones(1)).item())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [5]
    assert compiled(torch.ones(1)).item() == 1


@pytest.mark.parametrize("made", [lambda number: array("d", [number]), lambda number: struct.Struct(f"{int(number)}x")])
def test_a_start_without_a_trace_tells_objects_apart_whose_data_are_in_c(made, tmp_path):
    options = Options(cache_directory=tmp_path)
    holder = SimpleNamespace(data=made(1.0))
    program = lambda x: x + (holder.data[0] if isinstance(holder.data, array) else holder.data.size)  # noqa: E731
    for number in (1.0, 2.0, 1.0):
        holder.data = made(number)
        compiled = aot_function(program, StandAloneCompiler(options))
        assert compiled(torch.zeros(1)).item() == number


@pytest.mark.parametrize(
    "read",
    [lambda: sys.modules["looked_up_by_text"].level, lambda: importlib.import_module("looked_up_by_text").level],
    ids=["sys.modules", "import_module"],
)
def test_modules_looked_up_by_a_text_are_guards(read, monkeypatch):
    module = ModuleType("looked_up_by_text")
    module.level = 1.0
    monkeypatch.setitem(sys.modules, "looked_up_by_text", module)
    compiled = precast.compile(lambda x: x + read(), backend="nop")
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    module.level = 2.0
    assert compiled(torch.zeros(2)).tolist() == [2, 2]
    other = ModuleType("looked_up_by_text")
    other.level = 3.0
    monkeypatch.setitem(sys.modules, "looked_up_by_text", other)
    assert compiled(torch.zeros(2)).tolist() == [3, 3]


def test_a_global_that_is_bound_to_another_module_is_seen(monkeypatch):
    first, second = ModuleType("first"), ModuleType("second")
    first.level, second.level = 1.0, 2.0
    monkeypatch.setitem(globals(), "bound", first)
    compiled = precast.compile(lambda x: x + bound.level, backend="nop")  # noqa: F821
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    monkeypatch.setitem(globals(), "bound", second)
    assert compiled(torch.zeros(2)).tolist() == [2, 2]


LEVELS = {"now": 1.0}


@functools.lru_cache
def cached_table(size):
    return torch.arange(size) * 2.0


@functools.lru_cache
def cached_number(factor):
    return LEVELS["now"] * factor


class Cached:
    @staticmethod
    @functools.lru_cache
    def table(size):
        return torch.ones(size)

    @functools.lru_cache  # noqa: B019
    def own(self, size):
        return torch.ones(size) * 3


def test_a_cache_holds_nothing_of_a_trace():
    holder = Cached()

    def program(x):
        return x * cached_table(3) + holder.own(3) * Cached.table(3)

    compiled = precast.compile(program, backend="nop")
    x = torch.ones(3, requires_grad=True)
    for run in (compiled, program, compiled):
        found = run(x)
        assert found.tolist() == [3, 5, 7]
        (gradient,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        assert gradient.tolist() == [0, 2, 4]
    assert type(cached_table(3)) is torch.Tensor


def table_of(size):
    return torch.arange(float(size))


def closing_over_a_cache():
    hidden = functools.cache(lambda size: table_of(size))
    return lambda x: x * hidden(3)


class HoldingCaches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = functools.lru_cache(self.make)
        self.listed = [functools.cache(lambda size: table_of(size))]

    def make(self, size):
        return torch.ones(size)

    def forward(self, x):
        return x * self.listed[0](3) * self.cached(3)


class CallingACachedGlobal(torch.nn.Module):
    def forward(self, x):
        return x * cached_table(3) / 2 * Cached.table(3)


@pytest.mark.parametrize("make", [closing_over_a_cache, HoldingCaches, CallingACachedGlobal])
def test_caches_in_closures_and_instances_hold_nothing_of_a_trace(make):
    program, x = make(), torch.ones(3)
    compiled = precast.compile(program, backend="nop")
    for run in (compiled, program, compiled):
        assert run(x).tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [closing_over_a_cache, HoldingCaches, CallingACachedGlobal])
def test_caches_hold_nothing_of_an_export(make):
    program, x = make(), torch.ones(3)
    capture(program, (x,))
    assert program(x).tolist() == [0, 1, 2]


class CachedProperties:
    @functools.cached_property
    def table(self):
        return table_of(3)

    @functools.cached_property
    def nested(self):
        return {"tables": [table_of(3)]}


def test_a_cached_property_holds_nothing_of_a_trace():
    holder = CachedProperties()

    def program(x):
        return x * holder.table + holder.nested["tables"][0]

    compiled = precast.compile(program, backend="nop")
    for run in (compiled, program, compiled):
        assert run(torch.ones(3)).tolist() == [0, 2, 4]
    assert type(holder.table) is type(holder.nested["tables"][0]) is torch.Tensor


def test_numbers_that_became_inputs_stay_in_no_cache():
    compiled = precast.compile(lambda x: x * cached_number(2), backend="nop")
    for level in (1.0, 4.0, 5.0):
        LEVELS["now"] = level
        cached_number.cache_clear()
        assert compiled(torch.ones(2)).tolist() == [2 * level] * 2
        assert cached_number(2) == 2 * level
