"""A tensor that is resized to the sizes it has stays as it is, however it lies."""

import pytest
import torch

import precast

TEMPLATE = torch.zeros(4, 3)


@pytest.mark.parametrize(
    "resize",
    [
        lambda tensor: tensor.resize_(4, 3),
        lambda tensor: tensor.resize_((4, 3)),
        lambda tensor: tensor.resize_(torch.Size([4, 3])),
        lambda tensor: tensor.resize_as_(TEMPLATE),
        lambda tensor: tensor.resize_(2, 3),
    ],
)
def test_values_and_strides_are_eagers(resize):
    def function(x):
        return resize(x.t().clone()) + 0

    x = torch.arange(12.0).view(3, 4)
    compiled, expected = precast.compile(function, backend="interpret")(x), function(x)
    assert torch.equal(compiled, expected)
    assert compiled.stride() == expected.stride()
