"""Fake inputs: metadata without data, and sizes that stay free."""

import pytest
import torch

from precast.graph.sizes import SizeRange
from precast.trace.fake_inputs import DynamicSize, FakeInputs, fresh_copies


def dynamic_fake(tensor, *, example=None, size_range=None):
    fakes = FakeInputs()
    fakes.declare("batch", example=example or tensor.shape[0], seen_at="x.shape[0]", size_range=size_range)
    return fakes, fakes.fake(tensor, [DynamicSize("batch"), *[None] * (tensor.dim() - 1)])


def test_static_fakes_look_like_the_tensor():
    tensor = torch.ones(3, 2, requires_grad=True).t()
    made = FakeInputs().fake(tensor)
    assert (made.shape, made.stride(), made.dtype, made.requires_grad) == ((2, 3), (1, 2), torch.float32, True)


@pytest.mark.parametrize("example", [0, 1])
def test_zero_and_one_do_not_freeze_a_size(example):
    fakes, made = dynamic_fake(torch.ones(example, 3))
    assert isinstance(made.shape[0], torch.SymInt)
    assert bool(made.shape[0] != 1)
    assert fakes.sizes().guards == ()


def test_a_range_that_allows_one_size_only_keeps_it():
    _, made = dynamic_fake(torch.ones(1, 3), size_range=SizeRange(1, 1))
    assert int(made.shape[0]) == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(4, 3, 5),
        torch.ones(5, 4, 3).permute(1, 2, 0),
        torch.ones(4, 8, 5)[:, ::2],
        torch.ones(1, 3, 5).expand(4, 3, 5),
        torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last),
    ],
    ids=["contiguous", "permuted", "strided", "expanded", "channels_last"],
)
def test_strides_keep_the_memory_order(tensor):
    _, made = dynamic_fake(tensor)
    hints = [stride if isinstance(stride, int) else stride.node.hint for stride in made.stride()]
    assert tuple(hints) == tensor.stride()
    assert made.is_contiguous() == tensor.is_contiguous()


def test_relations_between_sizes():
    fakes = FakeInputs()
    fakes.declare("batch", example=4, seen_at="x.shape[0]")
    made = fakes.fake(torch.ones(9), [DynamicSize("batch", 2, 1)])
    assert made.shape[0].node.hint == 9
    assert [str(symbol.range) for symbol in fakes.sizes().symbols] == ["0.."]


def test_guards_and_specializations_are_told():
    fakes, made = dynamic_fake(torch.ones(4, 3))
    assert made.shape[0] == 4
    assert fakes.specialized() == {"batch": 4}
    (guard,) = fakes.sizes().guards
    assert str(guard.condition).startswith("Eq(")


def test_fresh_copies_shield_the_originals_metadata():
    fakes = FakeInputs()
    made = fakes.fake(torch.ones(2, 3))
    with fakes.mode:
        (copy,) = fresh_copies([made])
        copy.t_()
    assert (made.shape, copy.shape) == ((2, 3), (3, 2))


def test_fresh_copies_keep_leaves_leaves():
    fakes = FakeInputs()
    leaf = fakes.fake(torch.ones(2, requires_grad=True))
    with fakes.mode:
        inner = leaf * 2
        copies = fresh_copies([leaf, inner, 5])
    assert [copy.is_leaf for copy in copies[:2]] == [True, False]
    assert all(copy.requires_grad for copy in copies[:2])
    assert copies[2] == 5


def test_padding_and_convolution_leave_the_batch_free():
    fakes, made = dynamic_fake(torch.ones(4, 3, 8, 8))
    with fakes.mode, torch.no_grad():
        torch.nn.functional.pad(made, (0, 0, 0, 0))
        torch.nn.functional.conv2d(made, torch.empty(2, 3, 3, 3))
        torch.rot90(made, 1, [2, 3])
    assert fakes.specialized() == {}
    assert fakes.sizes().guards == ()


def test_strides_of_sizes_of_one_are_those_of_the_tensor():
    fakes, made = dynamic_fake(torch.empty_strided((5, 8, 1), (8, 1, 8)))
    assert made.stride() == (8, 1, 8)
    fakes = FakeInputs()
    fakes.declare("width", example=8, seen_at="x.shape[1]")
    made = fakes.fake(torch.empty_strided((5, 8, 1), (8, 1, 8)), [None, DynamicSize("width"), None])
    assert str(made.stride(0)) == str(made.stride(2)) == str(made.shape[1])
