"""Arguments and results of any nesting, by their names."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError
from precast.graph.interpreter import interpret
from precast.trace.capture import capture

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Boxes:
    corners: torch.Tensor
    scores: torch.Tensor


pytree.register_dataclass(Boxes)
x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])


def names(program):
    return [spec.arg.name for spec in program.signature.inputs]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda pair: pair[0] - pair[1], ((x, y),)),
        (lambda pair: pair.left - pair.right, (Pair(x, y),)),
        (lambda boxes: boxes.corners - boxes.scores, (Boxes(x, y),)),
        (lambda tree: tree["a"][0] - tree["b"]["c"], ({"a": [x], "b": {"c": y}},)),
        (lambda tree: tree["b"] - tree["a"], (OrderedDict(b=x, a=y),)),
        (lambda *parts: parts[0] - parts[1], (x, y)),
    ],
    ids=["tuple", "namedtuple", "dataclass", "dict", "ordered dict", "variable arguments"],
)
def test_arguments(function, args):
    torch.testing.assert_close(interpret(capture(function, args), *args), x - y)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: [a, (a + 1, {"b": a + 2})],
        lambda a: Pair(a, a + 1),
        lambda a: Boxes(a, a + 1),
        lambda a: OrderedDict(b=a, a=a + 1),
        lambda a: a + 1,
        lambda a: (),
        lambda a: None,
        lambda a: (a + 1, 3, "text", None, 2.5, True, torch.float32),
    ],
    ids=["nested", "namedtuple", "dataclass", "ordered dict", "bare", "empty", "none", "plain values"],
)
def test_results(make):
    result, expected = interpret(capture(make, (x,)), x), make(x)
    assert type(result) is type(expected)
    assert pytree.tree_structure(result) == pytree.tree_structure(expected)
    for ours, theirs in zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True):
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs


def test_an_input_may_be_a_result():
    program = capture(lambda a: (a, a), (x,))
    result = interpret(program, y)
    assert result[0] is y
    assert result[1] is y


def test_keyword_arguments():
    program = capture(lambda a, *, scale, shift=0: a * scale + shift, (x,), {"scale": y, "shift": 1})
    torch.testing.assert_close(interpret(program, x, scale=y, shift=1), x * y + 1)


def test_keyword_order_does_not_matter():
    program = capture(lambda a, b: a - b, (), {"a": x, "b": y})
    torch.testing.assert_close(interpret(program, b=y, a=x), x - y)


def test_names_follow_the_users():
    program = capture(
        lambda first, pairs, *rest, mask: first + pairs["k"][1] + rest[1] + mask,
        (x, {"k": (x, y)}, x, y),
        {"mask": x},
    )
    assert names(program) == ["first", "pairs_k_0", "pairs_k_1", "rest_0", "rest_1", "mask"]


def test_names_that_collide_count_up():
    def function(a_0, a):
        return a_0 + a[0]

    assert names(capture(function, (x, [y]))) == ["a_0", "a_1"]


def test_reserved_names_are_avoided():
    program = capture(lambda self, lambda_: self + lambda_, (x, y))
    assert len(set(names(program))) == 2
    torch.testing.assert_close(interpret(program, x, y), x + y)


def test_python_values_are_constants():
    program = capture(lambda a, count, flag: a * count if flag else a, (x, 3, True))
    torch.testing.assert_close(interpret(program, x, 3, True), x * 3)


def test_a_result_that_no_graph_can_return():
    with pytest.raises(InputTypeError, match="The program returns a object"):
        capture(lambda a: object(), (x,))


def test_defaults_are_constants_too():
    program = capture(lambda a, scale=2.0: a * scale, (x,))
    torch.testing.assert_close(interpret(program, x), x * 2)
