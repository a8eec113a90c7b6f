"""A name that comes where one goes, and namespaces exchanged as a whole: as many as before are not the same."""

import builtins
import functools
import sys
import types
from collections import OrderedDict

import pytest
import torch
from torch import nn

import precast

X = torch.ones(3)
CASES = {}


def case(make):
    """Add a case: ``make`` returns a program, and what is changed between two calls."""
    CASES[make.__name__.strip("_").replace("_", " ")] = make
    return make


def _exchange(holder, name, value, spare="spare"):
    """As many names as before, one of them another."""

    def change():
        delattr(holder, spare)
        setattr(holder, name, value)

    return change


class Base:
    spare, gain = 0, 2.0

    def scaled(self, x):
        return x * 2

    def __call__(self, x):
        return x * 2


class Layer(nn.Module):
    spare, gain = 0, 2.0

    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(3)), nn.ReLU()
        self.register_buffer("shift", torch.ones(3))
        self.spare = 0

    def scaled(self, x):
        return x * 2

    def forward(self, x):
        return self.inner(self.scaled(x) * self.gain * self.weight) + self.shift


def _subclass(base, **members):
    return type("Derived", (base,), {"spare": 0, "__module__": __name__, **members})


def _object(base=Base):
    made = _subclass(base)()
    made.spare = 0
    return made


@case
def _attribute_of_a_module():
    module = Layer()
    return module, _exchange(module, "gain", 5.0)


@case
def _method_of_a_module():
    module = Layer()
    return module, _exchange(module, "scaled", lambda x: x * 7)


@case
def _forward_of_a_module():
    module = Layer()
    return module, _exchange(module, "forward", lambda x: x * 7)


@case
def _forward_of_a_child():
    module = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
    return module, _exchange(module[1], "forward", lambda x: x * 7, "in_features")


@case
def _attribute_in_place_of_a_parameter():
    module = Layer()
    return module, lambda: (vars(module).pop("spare"), vars(module).update(weight=5.0))


@case
def _attribute_in_place_of_a_child():
    module = Layer()
    return module, lambda: (vars(module).pop("spare"), vars(module).update(inner=torch.neg))


@case
def _attribute_of_a_subclass_of_modules():
    kind = _subclass(Layer)
    return kind(), _exchange(kind, "gain", 5.0)


@case
def _property_in_place_of_a_parameter():
    kind = _subclass(Layer)
    return kind(), _exchange(kind, "weight", property(lambda _: 7.0))


@case
def _attributes_of_a_module():
    module = Layer()
    return module, lambda: setattr(module, "__dict__", {**vars(module), "gain": 5.0})


@case
def _buffers_of_a_module():
    module = Layer()
    return module, lambda: setattr(module, "_buffers", {"shift": torch.full((3,), 5.0)})


@case
def _children_of_a_module():
    module = Layer()
    return module, lambda: setattr(module, "_modules", {"inner": nn.Tanh()})


@case
def _child_that_moves():
    first, second = nn.Sequential(nn.Tanh(), nn.Softplus()), nn.Sequential(nn.Sigmoid())
    return lambda x: second(first(x) * 2), lambda: second.insert(0, first.pop(1))


@case
def _attribute_of_an_object():
    holder = _object()
    return lambda x: x * holder.gain, _exchange(holder, "gain", 5.0)


@case
def _attribute_of_an_object_whose_last_stays_last():
    holder = _object()
    holder.last = 1

    def change():
        del holder.spare
        holder.gain, holder.last = 5.0, vars(holder).pop("last")

    return lambda x: x * holder.gain, change


@case
def _method_of_an_object():
    holder = _object()
    return lambda x: holder.scaled(x), _exchange(holder, "scaled", lambda x: x * 7)


@case
def _attributes_of_an_object():
    holder = _object()
    holder.gain = 3.0
    return lambda x: x * holder.gain, lambda: setattr(holder, "__dict__", {"spare": 0, "gain": 5.0})


@case
def _default_of_getattr():
    holder = types.SimpleNamespace(spare=0)
    return lambda x: x * getattr(holder, "gain", 2.0), _exchange(holder, "gain", 5.0)


@case
def _attribute_of_a_subclass():
    kind = _subclass(Base)
    return lambda x: x * kind.gain, _exchange(kind, "gain", 5.0)


@case
def _special_method_of_a_subclass():
    kind = _subclass(Base)
    called = kind()
    return lambda x: called(x), _exchange(kind, "__call__", lambda self, x: x * 7)


@case
def _property_in_place_of_an_attribute():
    holder = _object()
    holder.gain = 3.0
    return lambda x: x * holder.gain, _exchange(type(holder), "gain", property(lambda _: 5.0))


@case
def _attribute_of_a_class_in_place_of_its_metaclass():
    kind = type("Meta", (type,), {"gain": 2.0, "__module__": __name__})("Kind", (), {"spare": 0})
    return lambda x: x * kind.gain, _exchange(kind, "gain", 5.0)


@case
def _bases_of_a_class():
    left, right = (type("Base", (), {"gain": gain, "__module__": __name__}) for gain in (2.0, 5.0))
    holder = type("Derived", (left,), {"__module__": __name__})()
    return lambda x: x * holder.gain, lambda: setattr(type(holder), "__bases__", (right,))


@case
def _value_in_place_of_a_descriptor():
    kind = _subclass(Base, gain=functools.cached_property(lambda self: self.level))
    holder = kind()
    holder.spare, holder.level = 0, 3.0
    holder.gain  # noqa: B018
    return lambda x: x * holder.gain, lambda: vars(holder).update(gain=5.0)


@case
def _what_another_object_delegates_to():
    holder = _object()
    asked = type("Asked", (), {"__getattr__": lambda _, name: getattr(holder, name), "__module__": __name__})()
    return lambda x: x * asked.gain, _exchange(holder, "gain", 5.0)


@case
def _slot_that_was_empty():
    kind = type("Slotted", (), {"__slots__": ("gain",), "__module__": __name__})
    holder = kind()
    return lambda x: x * getattr(holder, "gain", 2.0), lambda: setattr(holder, "gain", 5.0)


@case
def _attribute_of_a_function():
    def scaled(x):
        return x * getattr(scaled, "gain", 2.0)

    return scaled, lambda: setattr(scaled, "gain", 5.0)


@case
def _attribute_of_a_list():
    holder = _subclass(list, gain=2.0)([1.0])
    holder.spare = 0
    return lambda x: x * holder.gain * holder[0], _exchange(holder, "gain", 5.0)


@case
def _attribute_of_a_dict():
    holder = OrderedDict(a=1.0)
    holder.spare = 0
    return lambda x: x * getattr(holder, "gain", 2.0), _exchange(holder, "gain", 5.0)


@case
def _attribute_of_a_text():
    holder = _subclass(str, gain=2.0)("a")
    holder.spare = 0
    return lambda x: x * holder.gain, _exchange(holder, "gain", 5.0)


@case
def _attribute_of_the_class_of_a_dict():
    kind = _subclass(dict, gain=2.0)
    holder = kind(a=1.0)
    return lambda x: x * holder.gain * holder["a"], lambda: setattr(kind, "gain", 5.0)


@case
def _attribute_of_a_tensor():
    tensor = torch.ones(3)
    tensor.gain = 2.0
    return lambda x: x * tensor.gain, lambda: setattr(tensor, "gain", 5.0)


@case
def _attribute_of_a_parameter():
    module = Layer()
    module.weight.gain = 2.0
    module.scaled = lambda x: x * module.weight.gain
    return module, lambda: setattr(module.weight, "gain", 5.0)


@case
def _global_in_place_of_a_builtin():
    variables = {"spare": 0}
    exec("def scaled(x): return x * len((1, 2))", variables)
    return variables["scaled"], lambda: (variables.pop("spare"), variables.update(len=lambda _: 7))


@case
def _builtin_of_ones_own():
    builtins.precast_gain = 2.0
    return lambda x: x * precast_gain, lambda: setattr(builtins, "precast_gain", 5.0)  # noqa: F821


@case
def _name_that_was_not_bound():
    variables = {}
    exec("def scaled(x):\n try: return x * gain\n except NameError: return x", variables)
    return variables["scaled"], lambda: variables.update(gain=5.0)


@case
def _variable_of_a_module():
    module = types.ModuleType("precast_settings")
    module.spare = 0
    return lambda x: x * getattr(module, "gain", 2.0), _exchange(module, "gain", 5.0)


@case
def _module_imported_inside():
    for gain in (5.0, 2.0):
        settings = sys.modules["precast_settings"] = types.ModuleType("precast_settings")
        settings.gain = gain
    other = types.ModuleType("precast_settings")
    other.gain = 5.0

    def scaled(x):
        import precast_settings

        return x * precast_settings.gain

    return scaled, lambda: sys.modules.update(precast_settings=other)


@case
def _names_that_are_listed():
    holder = types.SimpleNamespace(spare=0, last=1)
    return lambda x: x * len([name for name in dir(holder) if name == "gain"]), _exchange(holder, "gain", 5.0)


@pytest.fixture
def tidy():
    yield
    sys.modules.pop("precast_settings", None)
    vars(builtins).pop("precast_gain", None)


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("name", CASES)
def test_a_name_that_comes_is_seen(name):
    program, change = CASES[name]()
    compiled, expected = precast.compile(program, backend="nop"), program(X)
    for _ in range(3):
        assert torch.equal(compiled(X), expected)
    assert len(precast.variants(compiled)) == 1
    change()
    assert not torch.equal(program(X), expected), "the change matters"
    assert torch.equal(compiled(X), program(X))


def test_names_that_nobody_reads_compile_nothing():
    module, holder = Layer(), _object()
    compiled = precast.compile(lambda x: module(x) * holder.gain, backend="nop")
    compiled(X)
    for number in range(3):
        for each in (module, holder, type(holder), Layer):
            setattr(each, f"comment{number}", number)
            if number:
                delattr(each, f"comment{number - 1}")
        for _ in range(2):
            compiled(X)
    delattr(Layer, "comment2")
    assert len(precast.variants(compiled)) == 1
