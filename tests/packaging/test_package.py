"""Packages: the original signature, numbers and state come back from the file."""

import copy

import pytest
import torch

import precast.runtime
from precast import Dim, package


class Normalized(torch.nn.Module):
    """Takes a dict and a keyword, returns a dict with a size, and updates buffers."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 3)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, inputs, *, scale):
        return {"y": self.layers(inputs["x"]) * scale, "rows": inputs["x"].shape[0]}


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    return Normalized()


@pytest.fixture(scope="module")
def path(original, tmp_path_factory):
    shapes = {"inputs": {"x": {0: Dim("batch", min=2, max=64)}}, "scale": None}
    return package(
        original,
        ({"x": torch.randn(5, 4)},),
        {"scale": torch.tensor(2.0)},
        path=tmp_path_factory.mktemp("package") / "normalized.precast",
        dynamic_shapes=shapes,
    )


def test_calls_have_the_original_signature(path, original):
    model, reference = precast.runtime.load(path), copy.deepcopy(original)
    for rows in (5, 2, 64):
        x, scale = torch.randn(rows, 4), torch.tensor(0.5)
        result, expected = model({"x": x}, scale=scale), reference({"x": x}, scale=scale)
        assert result["rows"] == rows
        torch.testing.assert_close(result["y"], expected["y"])


def test_buffers_are_updated_in_the_models_state(path, original):
    model, reference = precast.runtime.load(path), copy.deepcopy(original)
    for _ in range(3):
        x = torch.randn(6, 4)
        model({"x": x}, scale=torch.tensor(1.0))
        reference({"x": x}, scale=torch.tensor(1.0))
    assert model.state["layers.1.num_batches_tracked"] == 3
    torch.testing.assert_close(torch.as_tensor(model.state["layers.1.running_mean"]), reference.layers[1].running_mean)
    assert precast.runtime.load(path).state["layers.1.num_batches_tracked"] == 0
