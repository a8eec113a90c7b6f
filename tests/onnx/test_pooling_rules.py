"""Adaptive pooling, with the places of maxima."""

import pytest
import torch
from torch import nn

from precast.errors import OnnxError
from precast.onnx import export
from precast.trace.capture import Dim


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 4)])
def test_maxima_and_their_places(size: tuple[int, int]):
    model = nn.AdaptiveMaxPool2d(size, return_indices=True)
    program = export(model, (torch.randn(2, 3, 6, 7),), dynamic_shapes=({0: Dim("batch", min=1)},))
    x = torch.randn(4, 3, 6, 7)
    torch.testing.assert_close(program.call_as_model(x), model(x))


def test_places_of_maxima_need_fixed_sizes():
    model = nn.AdaptiveMaxPool2d(2, return_indices=True)
    with pytest.raises(OnnxError, match="Result 1"):
        export(model, (torch.randn(2, 3, 6, 7),), dynamic_shapes=({2: Dim("height", min=2)},))


def test_one_element_of_any_size():
    model = nn.AdaptiveMaxPool2d(1)
    program = export(model, (torch.randn(2, 3, 6, 7),), dynamic_shapes=({2: Dim("height", min=1)},))
    x = torch.randn(2, 3, 9, 7)
    torch.testing.assert_close(program.call_as_model(x), model(x))
