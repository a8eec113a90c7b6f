"""Objects of classes that extend dict, list or tuple, as arguments, results and state of compiled programs."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError, ExportError


class AttributeDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class BothWays(dict):
    """Keeps each entry as an item and as an attribute, as EasyDict does."""

    def __init__(self, **entries):
        for name, value in entries.items():
            setattr(self, name, value)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        super().__setitem__(name, value)

    __setitem__ = __setattr__


class Output(OrderedDict):
    def __init__(self, **entries):
        super().__init__(**entries)
        self.__dict__.update(entries)


class Boxes(list):
    label = "boxes"


class Pair(tuple):
    __slots__ = ()


def shown(value):
    """What can be seen of a value, with tensors as numbers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    attributes = {name: shown(each) for name, each in getattr(value, "__dict__", {}).items()}
    if isinstance(value, dict):
        return type(value).__name__, [(key, shown(each)) for key, each in value.items()], attributes
    if isinstance(value, (list, tuple)):
        return type(value), list(map(shown, value)), attributes
    return value


def from_items(x):
    return AttributeDict(double=x * 2, number=3)


def from_both(x):
    return BothWays(double=x * 2, same=x)


def from_output(x):
    return Output(logits=x * 2, loss=x.sum())


def from_list(x):
    made = Boxes([x, x + 1])
    made.scores = x * 3
    return made


def from_tuple(x):
    return Pair((x * 2, {"inner": AttributeDict(x=x)}))


def sizes(x):
    return x.shape, [x.size()], {"rest": x.shape[1:]}


@pytest.mark.parametrize("function", [from_items, from_both, from_output, from_list, from_tuple, sizes])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_as_in_eager(function, dynamic):
    compiled = aot_function(function, nop, dynamic=dynamic)
    for rows in (2, 3):
        x = torch.arange(2.0 * rows).view(rows, 2)
        assert shown(compiled(x)) == shown(function(x))


def grow(d):
    d["y"] = d["x"] * 2
    return len(d), list(d), d.get("z"), sum(v.sum() for v in d.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("kind", [AttributeDict, BothWays])
def test_arguments_hold_their_items_and_are_changed_as_in_eager(kind):
    compiled = aot_function(grow, nop)
    for _ in range(2):
        ours, eager = kind(x=torch.ones(2), n=1), kind(x=torch.ones(2), n=1)
        assert shown(compiled(ours)) == shown(grow(eager))
        assert shown(ours) == shown(eager)


def test_lists_of_own_classes_are_changed_as_in_eager():
    def append(boxes):
        boxes.append(boxes[0] * 2)
        boxes.best = boxes[1]
        return boxes

    compiled = aot_function(append, nop)
    for _ in range(2):
        ours, eager = Boxes([torch.ones(2)]), Boxes([torch.ones(2)])
        assert compiled(ours) is ours
        assert shown(ours) == shown(append(eager))
        assert ours.best is ours[1]


def test_another_value_among_items_is_another_variant():
    compiled = aot_function(lambda d: d.x * d.scale, nop)
    assert [compiled(AttributeDict(x=torch.ones(1), scale=s)).item() for s in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = BothWays(total=torch.zeros(2))

    def forward(self, x):
        self.seen.total = self.seen["total"] + x
        return self.seen.total * 2


def test_state_holds_its_items():
    module = Counts()
    compiled = precast.compile(module, backend="nop", fullgraph=True)
    for count in (1, 2, 3):
        assert compiled(torch.ones(2)).tolist() == [2.0 * count] * 2
        assert module.seen.total is module.seen["total"]


class KeepsSizes(nn.Module):
    def forward(self, x):
        self.size, self.sizes = x.shape, {"all": x.size()}
        return x * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_are_kept_are_sizes(dynamic):
    module = KeepsSizes()
    compiled = precast.compile(module, backend="nop", fullgraph=True, dynamic=dynamic)
    for rows in (2, 3):
        compiled(torch.ones(rows, 4))
        assert shown(module.size) == shown(torch.Size([rows, 4]))
        assert shown(module.sizes["all"]) == shown(torch.Size([rows, 4]))


def test_lazy_modules_take_their_shapes_from_the_first_call():
    module = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    compiled = precast.compile(module, backend="nop")
    with pytest.warns(precast.GraphBreakWarning, match="lazy module"):
        assert compiled(torch.ones(2, 4)).shape == (2, 3)
    compiled(torch.ones(2, 4)).sum().backward()
    assert len(precast.variants(compiled)) == 1


def test_files_refuse_them():
    class Program(nn.Module):
        def forward(self, x):
            return AttributeDict(y=x * 2)

    program = precast.export(Program(), (torch.ones(2),))
    with pytest.raises(ExportError, match="AttributeDict cannot be saved"):
        precast.save(program, "unused.pcx")


def test_what_traces_by_itself_is_refused():
    def linearized(x):
        return torch.func.linearize(torch.sin, x)[1](x)

    with pytest.raises(CaptureError, match="not recorded"):
        aot_function(linearized, nop)(torch.ones(2))
