"""Fake tensors lie in memory as eager's do, and refuse what eager refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import precast
from precast.trace.eager.fake_mode import make_fake_mode

IMAGES = torch.randn(3, 5, 4, 2)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("permutation", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2)], ids=str)
def test_a_batch_norm_of_permuted_images_lies_as_eager_lays_it(permutation, training):
    def strides(images, scale):
        result = F.batch_norm(images, scale, scale, scale, scale, training)
        return result.stride(), torch.autograd.grad(result.sum(), images)[0].stride()

    images = IMAGES.permute(permutation).requires_grad_()
    scale = torch.ones(images.shape[1])
    mode = make_fake_mode(ShapeEnv())
    with mode:
        ours = strides(mode.from_tensor(images), mode.from_tensor(scale))
    assert ours == strides(images, scale)


ELEMENTWISE = {
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "rounded": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}
OPERANDS = {
    "a number": (torch.randn(5, 10).t(), torch.tensor(2.0)),
    "a row and a matrix": (torch.randn(5, 1, 10).transpose(0, 2), torch.randn(5, 10).t()),
    "a batch and a matrix": (torch.randn(5, 10, 6).transpose(0, 2), torch.randn(5, 10).t()),
}


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_result_of_two_operands_lies_as_eager_lays_it(name, operands):
    mode = make_fake_mode(ShapeEnv())
    with mode:
        ours = ELEMENTWISE[name](*(mode.from_tensor(each, static_shapes=True) for each in OPERANDS[operands]))
    assert ours.stride() == ELEMENTWISE[name](*OPERANDS[operands]).stride()


@pytest.mark.parametrize("operator", [torch.argmax, torch.argmin])
def test_the_place_of_the_largest_of_truth_values_is_refused_as_in_eager(operator):
    with pytest.raises(RuntimeError, match="bool") as eager:
        operator(torch.tensor([True, False]))
    with make_fake_mode(ShapeEnv()), pytest.raises(RuntimeError, match="bool") as ours:
        operator(torch.ones(2, dtype=torch.bool))
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("is_trained", [True, False])
def test_images_of_nothing_are_not_scaled_whatever_the_first_size_was(is_trained):
    scaled = precast.compile(lambda x: F.interpolate(x, scale_factor=2.0), backend="nop", dynamic=True)
    for size in (3, 5):
        assert scaled(torch.zeros(1, 1, size, requires_grad=is_trained)).shape == (1, 1, 2 * size)
    with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
        scaled(torch.zeros(1, 1, 0, requires_grad=is_trained))
