"""A call like the one before it takes a short way to its variant, and never to another's."""

import pytest
import torch
from torch import nn

from precast.autograd import aot_function
from precast.autograd.guards.call_key import PlainTensors, static_key
from precast.compilers import nop

COMPLEX = torch.randn(2, 3, dtype=torch.complex64)


class Tagged(torch.Tensor):
    pass


OTHERS = {
    "sizes": torch.ones(3, 2),
    "rank": torch.ones(6),
    "strides": torch.ones(3, 2).t(),
    "expanded": torch.ones(1, 1).expand(2, 3),
    "dtype": torch.ones(2, 3, dtype=torch.float64),
    "requires_grad": torch.ones(2, 3, requires_grad=True),
    "parameter": nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "subclass": torch.ones(2, 3).as_subclass(Tagged),
    "layout": torch.ones(2, 3).to_sparse(),
    "opaque layout": torch.ones(2, 3).to_mkldnn(),
    "device": torch.ones(2, 3, device="meta"),
    "lazily negated": COMPLEX.conj().imag,
    "number": 1.0,
    "nothing": None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_tensors_that_differ_are_not_alike(name):
    known, other = PlainTensors.of([torch.zeros(2, 3)]), OTHERS[name]
    assert known.are_like([torch.ones(2, 3)])
    assert not known.are_like([other])
    assert static_key([other]) != static_key([torch.ones(2, 3)])


def test_one_value_more_or_less_is_not_alike():
    known = PlainTensors.of([torch.zeros(2), torch.zeros(2)])
    assert not known.are_like([torch.zeros(2)])
    assert not known.are_like([torch.zeros(2)] * 3)


@pytest.mark.parametrize(
    "value", [OTHERS[name] for name in ("subclass", "layout", "lazily negated", "number")] + [COMPLEX]
)
def test_only_plain_tensors_are_remembered(value):
    assert PlainTensors.of([torch.zeros(2), value]) is None


def test_devices_are_remembered():
    values = [torch.zeros(2), torch.zeros(2, device="meta")]
    known = PlainTensors.of(values)
    assert known.are_like(values)
    assert not known.are_like([torch.zeros(2), torch.zeros(2)])
    assert not known.are_like(values[::-1])


def compiled_and_counts(function, **options):
    """The compiled function, and a list that grows with every compilation."""
    compilations = []

    def compiler(graph_module, example_inputs):
        compilations.append(graph_module)
        return nop(graph_module, example_inputs)

    return aot_function(function, compiler, **options), compilations


def called_often(compiled, *inputs):
    for _ in range(4):
        result = compiled(*inputs)
    return result


@pytest.mark.parametrize("name", ["sizes", "strides", "dtype", "requires_grad", "parameter", "lazily negated"])
def test_a_changed_input_leaves_the_short_way_and_comes_back(name):
    compiled, compilations = compiled_and_counts(lambda x: x.t() * 2)
    plain, other = torch.randn(2, 3), OTHERS[name]
    called_often(compiled, plain)
    before = len(compilations)
    assert torch.equal(called_often(compiled, other), other.t() * 2)
    assert compiled(other).stride() == (other.t() * 2).stride()
    assert len(compilations) > before
    met = len(compilations)
    assert torch.equal(called_often(compiled, plain), plain.t() * 2)
    assert len(compilations) == met


def test_a_changed_mode_leaves_the_short_way():
    compiled, compilations = compiled_and_counts(lambda x: x * (2 if torch.is_grad_enabled() else 3))
    x = torch.ones(2)
    assert called_often(compiled, x).tolist() == [2, 2]
    with torch.no_grad():
        assert called_often(compiled, x).tolist() == [3, 3]
    with torch.autocast("cpu", torch.bfloat16):
        called_often(compiled, x)
    assert compiled(x).tolist() == [2, 2]
    assert len(compilations) == 3


def test_a_module_that_is_switched_to_evaluation_leaves_the_short_way():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(1.0))
    compiled, _ = compiled_and_counts(module)
    x = torch.ones(1, 2)
    assert called_often(compiled, x).count_nonzero() == 0
    module.eval()
    assert torch.equal(called_often(compiled, x), module(x))


def test_a_parameter_given_other_data_leaves_the_short_way():
    module = nn.Linear(2, 2)
    compiled, _ = compiled_and_counts(module)
    x = torch.ones(1, 2)
    called_often(compiled, x)
    module.weight.data = torch.randn(2, 2).t()
    assert torch.equal(called_often(compiled, x), module(x))
    module.weight.requires_grad_(False)
    module.bias.requires_grad_(False)
    assert not called_often(compiled, x).requires_grad


def test_inputs_that_come_to_overlap_leave_the_short_way():
    def swap(x, y):
        x.add_(1)
        return x + y

    compiled, _ = compiled_and_counts(swap)
    called_often(compiled, torch.zeros(2), torch.zeros(2))
    both = torch.zeros(2)
    assert compiled(both, both).tolist() == [2, 2]
    assert both.tolist() == [1, 1]


def test_sizes_that_are_dynamic_keep_their_guards():
    compiled, compilations = compiled_and_counts(lambda x: x * 2 if x.shape[0] > 4 else x * 3, dynamic=True)
    assert called_often(compiled, torch.ones(3)).tolist() == [3] * 3
    assert called_often(compiled, torch.ones(6)).tolist() == [2] * 6
    assert called_often(compiled, torch.ones(2)).tolist() == [3] * 2
    assert len(compilations) == 2
