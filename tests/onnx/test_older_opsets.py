"""Models for opsets before the one that torchlib speaks: the same numbers, or a refusal that names the operator."""

import pytest
import torch
from torch import nn

from precast.errors import OnnxError
from precast.onnx import export

X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.thinned
@pytest.mark.parametrize("opset", [16, 17])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.mean(1), x.amax((0, 2)), x.sum(0)),
        lambda x: x.chunk(2, 1),
        lambda x: nn.functional.pad(x, (1, 2)),
        lambda x: nn.functional.interpolate(x, scale_factor=2),
        lambda x: nn.functional.gelu(x) + x.softmax(-1),
    ],
)
def test_the_same_numbers(function, opset):
    program = export(function, (X,), opset_version=opset)
    assert program.model.opset_imports == {"": opset}
    assert "example inputs" in program.verification.checked


def test_a_small_network_for_opset_16():
    model = nn.Sequential(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    program = export(model.eval(), (X,), opset_version=16, dynamic_shapes=({0: "batch"},))
    assert "batch=3" in program.verification.checked


@pytest.mark.parametrize(
    ("function", "operator"), [(lambda x: x.int() & 3, "BitwiseAnd"), (nn.LayerNorm(6), "LayerNormalization")]
)
def test_operators_that_came_later_are_named(function, operator):
    with pytest.raises(OnnxError, match=f"{operator} is not the same there") as caught:
        export(function, (X,), opset_version=16)
    assert "Export with opset=18" in str(caught.value)
