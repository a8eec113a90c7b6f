"""A program may ask how large a tensor's memory is; what it does to that memory itself is refused."""

import pytest
import torch

import precast
from precast.errors import CaptureError


def compiled(function, x):
    return precast.compile(function, backend="nop", fullgraph=True)(x)


def captured(function, x):
    return precast.interpret(precast.functional_program(function, (x,)), x)


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


@WAYS
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(
    "program",
    [
        grown, grown_from_nothing, emptied_afterwards, grown_between, grown_as_typed, filled, copied, element_set,
        pointed_at_another, pointed_at_its_own, element_read, compared_by_address,
    ],
)  # fmt: skip
def test_what_is_done_to_memory_is_refused(program, way):
    with pytest.raises(CaptureError, match="memory"):
        way(program, torch.arange(4.0))


@WAYS
def test_an_input_whose_memory_was_given_away_is_not_given_new_memory(way):
    x = torch.arange(4.0)
    x.untyped_storage().resize_(0)

    def given_back(x):
        x.untyped_storage().resize_(16)
        return x.copy_(torch.ones(4)) * 2

    with pytest.raises(CaptureError, match="memory"):
        way(given_back, x)


def test_memory_resized_under_torch_compile_is_refused():
    with pytest.raises(CaptureError, match="memory"):
        torch.compile(emptied_afterwards, backend="precast")(torch.arange(4.0))


@WAYS
def test_the_size_of_memory_may_be_asked_for(way):
    def program(x):
        return x * x.untyped_storage().nbytes() + x[1:].untyped_storage().size() + len(x.untyped_storage())

    x = torch.arange(4.0)
    torch.testing.assert_close(way(program, x), program(x))
