"""Memory that is written, and that a tensor subclass wraps: eager's numbers where it is shown once, else an error."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import precast
from precast.errors import InputValueError


def write_first(x, y):
    x.mul_(2)
    return y + 1


def count(size=4):
    return torch.arange(float(size))


def both_halves(tensor):
    return torch.stack([tensor.a, tensor.b])


@pytest.mark.parametrize(
    "arguments",
    [
        lambda a: (TwoTensor(a, count()), a),
        lambda a: (a, TwoTensor(count(), a)),
        lambda a: (TwoTensor(a, count()), TwoTensor(count(), a)),
        lambda a: (TwoTensor(a, count()), TwoTensor(a, count()).view(2, 2)),
        lambda a: (TwoTensor(a[:3], count(3)), a[2:]),
        lambda a: (TwoTensor(a, a), count()),
    ],
    ids=["beside its part", "part written", "two wrappers", "views", "overlapping views", "one part twice"],
)
def test_memory_shown_twice_is_refused(arguments):
    compiled = precast.compile(write_first, backend="nop", fullgraph=True)
    with pytest.raises(InputValueError, match="TwoTensor"):
        compiled(*arguments(count()))
    compiled = precast.compile(write_first, backend="nop")
    with pytest.warns(precast.GraphBreakWarning, match="TwoTensor"):
        result = compiled(*arguments(count()))
    expected = write_first(*arguments(count()))
    assert torch.equal(torch.as_tensor(getattr(result, "a", result)), getattr(expected, "a", expected))


def test_it_is_refused_in_a_later_call_too():
    compiled = precast.compile(write_first, backend="nop", fullgraph=True)
    compiled(TwoTensor(count(), count()), count())
    memory = count()
    with pytest.raises(InputValueError, match="TwoTensor"):
        compiled(TwoTensor(memory, count()), memory)


def test_views_of_one_wrapper_that_share_no_byte_are_written_as_in_eager():
    results = []
    for function in (write_first, precast.compile(write_first, backend="nop")):
        whole = TwoTensor(count(), count())
        results.append([both_halves(function(whole[:2], whole[2:])), both_halves(whole)])
    torch.testing.assert_close(results[0], results[1])


def test_the_same_wrapper_twice_is_written_as_in_eager():
    results = []
    for function in (write_first, precast.compile(write_first, backend="nop")):
        whole = TwoTensor(count(), count())
        results.append([both_halves(function(whole, whole)), both_halves(whole)])
    torch.testing.assert_close(results[0], results[1])


def test_parts_that_are_only_read_may_be_shared():
    offsets = torch.tensor([0, 2, 5])
    results = []
    for function in (write_first, precast.compile(write_first, backend="nop")):
        left, right = (torch.nested.nested_tensor_from_jagged(count(5) + i, offsets) for i in range(2))
        results.append([function(left, right).values(), left.values()])
    torch.testing.assert_close(results[0], results[1])


def test_overlapping_tensors_without_addresses():
    memory = torch.empty(4, device="meta")
    assert precast.compile(write_first, backend="nop")(memory, memory.view(2, 2)).shape == (2, 2)
