"""Packages that several tests look at, made once."""

import pytest
import torch

from precast import Dim, package


class Normalized(torch.nn.Module):
    """Takes a dict and a keyword, returns a dict with a size, and updates buffers."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 3)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, inputs, *, scale):
        return {"y": self.layers(inputs["x"]) * scale, "rows": inputs["x"].shape[0]}


@pytest.fixture(scope="session")
def normalized():
    torch.manual_seed(0)
    return Normalized()


@pytest.fixture(scope="session")
def normalized_path(normalized, tmp_path_factory):
    return package(
        normalized,
        ({"x": torch.randn(5, 4)},),
        {"scale": torch.tensor(2.0)},
        path=tmp_path_factory.mktemp("package") / "normalized.precast",
        dynamic_shapes={"inputs": {"x": {0: Dim("batch", min=2, max=64)}}, "scale": None},
        targets=("native", "x86-64-v3"),
    )
