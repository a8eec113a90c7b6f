"""Containers and objects that a compiled function gets, changes and returns."""

from collections import UserDict, deque
from dataclasses import dataclass

import numpy
import pytest
import torch

import precast
from precast.errors import InputTypeError

x = torch.tensor([1.0, 2.0])


@dataclass
class Boxes:
    corners: torch.Tensor
    count: int


@dataclass(frozen=True, slots=True)
class FrozenBoxes:
    corners: torch.Tensor


class Accumulator:
    def __init__(self, total):
        self.total = total
        self.report = print

    def add(self, value):
        self.total = self.total + value
        self.calls = getattr(self, "calls", 0) + 1
        return self.total


def compiled(function):
    return precast.compile(function, backend="interpret", fullgraph=True)


@pytest.mark.parametrize("make", [lambda t: Boxes(t, 3), FrozenBoxes, lambda t: UserDict(corners=t)])
def test_an_object_is_an_argument_and_a_result(make):
    result = compiled(lambda boxes: (make(x * 2), boxes))(given := make(x))
    assert type(result[0]) is type(given)
    assert result[1] is given
    corners = result[0]["corners"] if isinstance(given, UserDict) else result[0].corners
    assert torch.equal(corners, x * 2)


def test_an_objects_plain_values_are_what_is_compiled_for():
    double = compiled(lambda boxes: boxes.corners * boxes.count)
    assert torch.equal(double(Boxes(x, 2)), x * 2)
    assert torch.equal(double(Boxes(x, 3)), x * 3)


def test_changes_of_an_object_are_seen_by_the_caller():
    accumulator = Accumulator(x)
    add = compiled(lambda accumulator, value: accumulator.add(value))
    for count in (1, 2, 3):
        result = add(accumulator, torch.ones(2))
        assert result is accumulator.total
        assert accumulator.calls == count
    assert torch.equal(accumulator.total, x + 3)
    assert accumulator.report is print


def test_removed_attributes_are_removed_from_the_callers_object():
    def forget(boxes):
        del boxes.count
        return boxes.corners

    boxes = Boxes(x, 1)
    compiled(forget)(boxes)
    assert not hasattr(boxes, "count")


@pytest.mark.parametrize("kind", [list, deque])
def test_what_is_appended_stays_in_the_callers_list(kind):
    def append(value, seen):
        seen.append(value * 2)
        return seen

    seen, append = kind(), compiled(append)
    for _ in range(3):
        assert append(x, seen) is seen
    assert len(seen) == 3
    assert all(torch.equal(value, x * 2) for value in seen)


def test_what_is_stored_in_a_dict_stays_there_with_its_gradient():
    def store(value, seen):
        seen["square"] = value * value
        del seen["old"]
        return value + 1

    leaf, seen = x.clone().requires_grad_(), {"old": x}
    compiled(store)(leaf, seen)
    assert list(seen) == ["square"]
    seen["square"].sum().backward()
    assert torch.equal(leaf.grad, 2 * x)


def test_a_tensor_that_an_object_holds_is_written_in_place():
    boxes = Boxes(torch.zeros(2), 1)
    held = boxes.corners
    compiled(lambda boxes: boxes.corners.add_(1))(boxes)
    assert boxes.corners is held
    assert torch.equal(held, torch.ones(2))


@pytest.mark.parametrize("value", [{1, 2}, numpy.ones(2), object(), lambda: 3])
def test_other_values_are_refused(value):
    with pytest.raises(InputTypeError, match="inputs are tensors, plain Python values"):
        compiled(lambda tensor, value: tensor * 2)(x, value)


def test_an_object_of_the_callers_is_no_container_elsewhere():
    compiled(lambda boxes: boxes.corners * 2)(boxes := Boxes(x, 1))
    assert torch.utils._pytree.tree_leaves(boxes) == [boxes]
