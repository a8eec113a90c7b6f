"""What users say about sizes, in all its spellings, and what comes of it."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import sympy
import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.interpreter import interpret
from precast.graph.tensor_spec import TensorSpec
from precast.trace.capture import Dim, capture

Pair = namedtuple("Pair", ["left", "right"])
batch, length = Dim("batch"), Dim("length", min=2, max=16)


@dataclass
class Tokens:
    ids: torch.Tensor
    mask: torch.Tensor


pytree.register_dataclass(Tokens)


def shapes(program):
    """The inputs' shapes, with symbols by the users' names."""
    names = {symbol.symbol: sympy.Symbol(symbol.name) for symbol in program.sizes.symbols}
    specs = [TensorSpec.of(node.meta["val"]) for node in program.placeholders]
    return [tuple(s if isinstance(s, int) else str(s.xreplace(names)) for s in spec.shape) for spec in specs]


def total(*args, **kwargs):
    return sum(leaf.sum() for leaf in pytree.tree_leaves((args, kwargs)))


def function(x, y):
    return x.sum() + y.sum()


x, y = torch.ones(3, 4), torch.ones(5)


@pytest.mark.parametrize(
    "spec",
    [
        {"x": {0: batch}, "y": None},
        {"x": {0: batch}},
        {"x": (batch, None)},
        {"x": [batch, Dim.STATIC]},
        {"x": {-2: batch}},
        {"x": (batch, 4)},
        ({0: batch}, None),
        [(batch, None), {}],
    ],
)
def test_spellings_of_one_dynamic_dimension(spec):
    assert shapes(capture(function, (x, y), dynamic_shapes=spec)) == [("batch", 4), (5,)]


def test_keyword_arguments_by_name():
    program = capture(function, (x,), {"y": y}, dynamic_shapes={"x": {0: batch}, "y": {0: length}})
    assert shapes(program) == [("batch", 4), ("length",)]


@pytest.mark.parametrize(
    ("argument", "spec"),
    [
        ([x, y], [{0: batch}, None]),
        ((x, y), ({0: batch}, None)),
        ({"a": x, "b": y}, {"a": {0: batch}}),
        ({"a": x, "b": y}, {"a": {0: batch}, "b": None}),
        (Pair(x, y), ({0: batch}, None)),
        (Pair(x, y), {"left": {0: batch}}),
        (Tokens(x, y), {"ids": {0: batch}}),
        (Tokens(x, y), [{0: batch}, None]),
    ],
    ids=[
        "list",
        "tuple",
        "part of a dict",
        "dict",
        "namedtuple",
        "namedtuple by name",
        "dataclass",
        "dataclass as list",
    ],
)
def test_containers(argument, spec):
    assert shapes(capture(total, (argument,), dynamic_shapes=(spec,))) == [("batch", 4), (5,)]


def test_variable_arguments():
    program = capture(lambda first, *rest: total(first, rest), (x, x, y),
                      dynamic_shapes={"first": {0: batch}, "rest": ({0: batch}, {0: length})})  # fmt: skip
    assert shapes(program) == [("batch", 4), ("batch", 4), ("length",)]


def test_the_same_dim_means_equal_sizes():
    program = capture(lambda a, b: a + b, (x, x), dynamic_shapes={"a": {0: batch}, "b": {0: batch}})
    assert shapes(program) == [("batch", 4)] * 2
    assert program.sizes.guards == ()


def test_relations():
    program = capture(
        lambda a, b: torch.cat([a, a, b[:1]]) + b,
        (torch.ones(3), torch.ones(7)),
        dynamic_shapes={"a": {0: batch}, "b": {0: 2 * batch + 1}},
    )
    assert shapes(program) == [("batch",), ("2*batch + 1",)]
    torch.testing.assert_close(interpret(program, torch.ones(5), torch.ones(11)), torch.full((11,), 2.0))


def test_ranges_come_out_per_symbol():
    program = capture(function, (x, y), dynamic_shapes={"x": {0: batch}, "y": {0: length}})
    assert {symbol.name: str(symbol.range) for symbol in program.sizes.symbols} == {"batch": "0..", "length": "2..16"}


@pytest.mark.parametrize("example", [0, 1])
def test_zero_and_one_as_example_do_not_freeze_a_dimension(example):
    program = capture(lambda a: (a * 2).sum(1), (torch.ones(example, 4),), dynamic_shapes={"a": {0: batch}})
    assert shapes(program) == [("batch", 4)]
    for size in (0, 1, 2, 9):
        torch.testing.assert_close(interpret(program, torch.ones(size, 4)), torch.full((size,), 8.0))


def test_one_as_example_of_two_dimensions_keeps_them_apart():
    program = capture(lambda a: a.sum(), (torch.ones(1, 1),), dynamic_shapes={"a": {0: Dim("rows"), 1: Dim("columns")}})
    assert shapes(program) == [("rows", "columns")]


def test_equal_examples_of_two_dims_stay_apart():
    program = capture(function, (torch.ones(5, 4), y), dynamic_shapes={"x": {0: batch}, "y": {0: length}})
    assert shapes(program) == [("batch", 4), ("length",)]


def test_automatic_dimensions_stay_free_or_become_numbers():
    program = capture(
        lambda a, b: a.reshape(3, 4).sum() + b.sum(),
        (x, y),
        dynamic_shapes={"a": {0: Dim.AUTO, 1: Dim.AUTO}, "b": {0: Dim.AUTO}},
    )
    assert shapes(program)[0] == (3, 4)
    assert not isinstance(shapes(program)[1][0], int)
    assert interpret(program, x, torch.ones(9)) == 12 + 9


def test_automatic_dimensions_that_must_be_equal_become_one():
    program = capture(lambda a, b: a + b, (y, y), dynamic_shapes={"a": {0: Dim.AUTO}, "b": {0: Dim.AUTO}})
    (a,), (b,) = shapes(program)
    assert a == b
    assert interpret(program, torch.ones(8), torch.ones(8)).shape == (8,)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_take_any_batch(kind):
    layer = kind(4, 5, batch_first=True).requires_grad_(False)
    program = capture(lambda a: layer(a)[0], (torch.ones(2, 3, 4),), dynamic_shapes={"a": {0: batch}})
    inputs = torch.randn(6, 3, 4)
    torch.testing.assert_close(interpret(program, inputs), layer(inputs)[0])


def test_results_follow_the_sizes():
    program = capture(lambda a: (a.shape[0] * 2, a.new_zeros(a.shape[0] + 1)), (x,), dynamic_shapes={"a": {0: batch}})
    doubled, zeros = interpret(program, torch.ones(10, 4))
    assert doubled == 20
    assert zeros.shape == (11,)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"z": {0: batch}}, "names 'z', which is not an argument"),
        (({0: batch},), "has 1 entries for 2 arguments"),
        ({"x": {2: batch}}, r"for x names dimension 2"),
        ({"x": {"0": batch}}, r"names dimension '0'"),
        ({"x": (batch,)}, r"for x is \(batch,\)"),
        ({"x": {0: 7}}, r"says 7 for x.shape\[0\], but the example has 3"),
        ({"y": {0: Dim("b", max=4)}}, r"has size 5 at y.shape\[0\], outside of b"),
        ({"y": {0: 2 * batch}}, r"size 5 at y.shape\[0\], which 2\*batch cannot be"),
    ],
)
def test_specs_that_do_not_fit(spec, message):
    with pytest.raises(InputValueError, match=message):
        capture(function, (x, y), dynamic_shapes=spec)


def test_one_dim_with_two_sizes():
    with pytest.raises(InputValueError, match=r"batch is 3 at x.shape\[0\] and 5 at y.shape\[0\]"):
        capture(function, (x, y), dynamic_shapes={"x": {0: batch}, "y": {0: batch}})


def test_one_name_with_two_ranges():
    with pytest.raises(InputValueError, match="Two Dims are called 'batch'"):
        capture(function, (x, y), dynamic_shapes={"x": {0: Dim("batch", max=8)}, "y": {0: Dim("batch", max=9)}})


@pytest.mark.parametrize("spec", [{"x": {0: 1.5}}, {"x": {0: True}}])
def test_dims_of_the_wrong_type(spec):
    with pytest.raises(InputTypeError, match="dynamic_shapes says"):
        capture(function, (x, y), dynamic_shapes=spec)


def test_a_spec_of_the_wrong_type():
    with pytest.raises(InputTypeError, match="dynamic_shapes is of type int"):
        capture(function, (x, y), dynamic_shapes=3)


def test_a_container_of_another_structure():
    with pytest.raises(InputValueError, match=r"dynamic_shapes for pair does not have the structure"):
        capture(lambda pair: total(pair), ([x, y],), dynamic_shapes=([{0: batch}],))


def test_sizes_of_plain_values():
    with pytest.raises(InputValueError, match=r"describes pair\[1\], which is 3.5 and neither"):
        capture(lambda pair: pair[0] * pair[1], ((x, 3.5),), dynamic_shapes=((None, {0: batch}),))


def test_names_of_dimensions_are_identifiers():
    with pytest.raises(InputValueError, match="cannot name a dimension"):
        Dim("my batch")


def test_negative_scales_are_refused():
    with pytest.raises(InputValueError, match="cannot be a size"):
        -1 * batch


def test_dims_print_as_written():
    assert [repr(dim) for dim in (batch, 2 * batch, batch + 1, 3 * batch - 2)] == [
        "batch",
        "2*batch",
        "batch + 1",
        "3*batch - 2",
    ]
