"""Fake tensors lie in memory as eager's do, and refuse what eager refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.tracing.fake_mode import make_fake_mode

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


@pytest.mark.parametrize("operator", [torch.argmax, torch.argmin])
def test_the_place_of_the_largest_of_truth_values_is_refused_as_in_eager(operator):
    with pytest.raises(RuntimeError, match="bool") as eager:
        operator(torch.tensor([True, False]))
    with make_fake_mode(ShapeEnv()), pytest.raises(RuntimeError, match="bool") as ours:
        operator(torch.ones(2, dtype=torch.bool))
    assert str(ours.value) == str(eager.value)
