"""A program may ask how large a tensor's memory is, and resize that of inputs; what else it does to it is refused."""

from functools import partial

import pytest
import torch

import precast
from precast.errors import CaptureError


def compiled(function, x):
    return precast.compile(function, backend="nop", fullgraph=True)(x)


def captured(function, x):
    return precast.interpret(precast.functional_program(function, (x,)), x)


def torch_compile(function):
    return torch.compile(function, backend="precast")


WAYS = pytest.mark.parametrize("way", [compiled, captured])


def grown(x):
    x.untyped_storage().resize_(64)
    return x * 2


def grown_from_nothing(x):
    memory = x.untyped_storage()
    memory.resize_(0)
    memory.resize_(16)
    return x.copy_(torch.ones(4)) * 2


def emptied_afterwards(x):
    y = x * 2
    x.untyped_storage().resize_(0)
    return y


def grown_between(x):
    y = x * 2
    y.untyped_storage().resize_(64)
    return y + 1


def grown_as_typed(x):
    x.storage().resize_(16)
    return x * 2


def filled(x):
    x.untyped_storage().fill_(0)
    return x * 2


def copied(x):
    x.untyped_storage().copy_(torch.ones(4).untyped_storage())
    return x * 2


def element_set(x):
    x.untyped_storage()[0] = 1
    return x * 2


def pointed_at_another(x):
    return x.set_(torch.ones(4).untyped_storage()) * 2


def pointed_at_its_own(x):
    return x.set_(x.untyped_storage(), 0, (2,), (1,)) * 2


def element_read(x):
    return x * x.untyped_storage()[0]


def compared_by_address(x):
    return x * (x.untyped_storage().data_ptr() == x.clone().untyped_storage().data_ptr())


RESIZING = [grown, grown_from_nothing, emptied_afterwards, grown_as_typed]


@WAYS
@pytest.mark.parametrize(
    "program",
    [
        grown_between, filled, copied, element_set, pointed_at_another, pointed_at_its_own, element_read,
        compared_by_address,
    ],
)  # fmt: skip
def test_what_is_done_to_memory_is_refused(program, way):
    with pytest.raises(CaptureError, match="memory"):
        way(program, torch.arange(4.0))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("program", RESIZING)
def test_a_captured_program_cannot_say_that_memory_is_resized(program):
    with pytest.raises(CaptureError, match="memory"):
        captured(program, torch.arange(4.0))


def given_back(x):
    torch.ops.inductor.resize_storage_bytes_(x, 16)
    with torch.no_grad():
        x.copy_(torch.ones(4))
    return x * 2


def lent(x):
    y = given_back(x) + 1
    x.untyped_storage().resize_(0)
    return y


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("compiled", [partial(precast.compile, backend="nop"), precast.compile, torch_compile])
@pytest.mark.parametrize(
    ("program", "is_empty"), [*((each, False) for each in RESIZING), (given_back, True), (lent, True)]
)
def test_memory_of_inputs_is_as_large_as_eager_leaves_it(program, is_empty, compiled):
    def seen(function):
        x = torch.arange(4.0).requires_grad_(is_empty)
        if is_empty:
            x.untyped_storage().resize_(0)
        y = function(x)
        size = x.untyped_storage().nbytes()
        gradient = torch.autograd.grad(y.sum(), x)[0].tolist() if is_empty else None
        return y.tolist(), size, x.tolist() if size else None, gradient

    function = compiled(program)
    assert [seen(function), seen(function)] == [seen(program)] * 2


@pytest.mark.filterwarnings("ignore::precast.GraphBreakWarning")
def test_a_program_that_asked_for_the_size_of_memory_asks_again():
    def by_size(x):
        return x * x.untyped_storage().nbytes()

    compiled = precast.compile(by_size, backend="nop")
    for x in (torch.ones(2), torch.ones(6)[:2], torch.ones(2)):
        assert torch.equal(compiled(x), by_size(x))


def test_memory_that_was_given_away_is_not_taken_for_full():
    def filled_if_empty(x):
        if x.untyped_storage().nbytes() == 0:
            x.untyped_storage().resize_(16)
            x.fill_(3)
        return x + 1

    compiled, x = precast.compile(filled_if_empty, backend="nop"), torch.ones(4)
    assert compiled(x).tolist() == [2.0] * 4
    x.untyped_storage().resize_(0)
    with pytest.warns(precast.GraphBreakWarning, match="memory"):
        assert compiled(x).tolist() == [4.0] * 4


@WAYS
def test_the_size_of_memory_may_be_asked_for(way):
    def program(x):
        return x * x.untyped_storage().nbytes() + x[1:].untyped_storage().size() + len(x.untyped_storage())

    x = torch.arange(4.0)
    torch.testing.assert_close(way(program, x), program(x))
