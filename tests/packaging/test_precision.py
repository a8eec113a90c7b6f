"""Packages in bfloat16: what autocast rounds is rounded, weights are stored so, inputs and results keep their types."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import precast
import precast.runtime
from precast.errors import OptionError

BF16 = {"precision": "bf16"}


class Tied(nn.Module):
    """Products, a norm, a convolution, and an embedding that is a product's weight too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 32)
        self.convolution, self.normal = nn.Conv1d(32, 32, 3, padding=1), nn.BatchNorm1d(32)
        self.norm, self.layer = nn.LayerNorm(32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(tokens)
        rows = rows + torch.relu(self.normal(self.convolution(rows.transpose(1, 2)))).transpose(1, 2)
        return self.head(nn.functional.gelu(self.layer(self.norm(rows))))


@pytest.fixture(scope="module")
def model() -> Tied:
    return Tied().eval()


@pytest.fixture(scope="module")
def path(model: Tied, tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = precast.Dim("batch", min=1, max=64)
    return precast.package(
        model,
        (torch.randint(50, (3, 7)),),
        path=tmp_path_factory.mktemp("precision") / "tied.precast",
        dynamic_shapes=({0: batch},),
        options=BF16,
    )


@pytest.mark.parametrize("batch", [1, 2, 13])
@torch.no_grad()
def test_results_are_as_exact_as_those_of_autocast(model: Tied, path: Path, batch: int) -> None:
    tokens = torch.randint(50, (batch, 7))
    result = torch.from_numpy(precast.runtime.load(path)(tokens.numpy()))
    exact = Tied().eval().double()(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager = model(tokens)
    # The embedding is rounded too, as it is the weight of a product.
    assert (result - exact).norm() < 1.5 * (eager - exact).norm()
    assert result.dtype == torch.float32


def test_weights_of_products_are_stored_in_bfloat16_once(path: Path) -> None:
    state = precast.runtime.load(path).state
    stored = {name: numpy.asarray(state[name]).dtype.itemsize for name in state}
    assert stored["layer.weight"] == 2
    assert stored["embedding.weight"] == 2
    assert stored["norm.weight"] == 4


def test_samples_are_right_and_torch_can_interpret_the_program(path: Path, model: Tied) -> None:
    precast.runtime.load(path).verify()
    tokens = torch.randint(50, (2, 7))
    interpreted = precast.runtime.load(path, allow_native=False)(tokens)
    torch.testing.assert_close(interpreted, precast.runtime.load(path)(tokens), atol=0.05, rtol=0.05)


def test_entries_share_weights_and_what_one_of_them_updates_is_not_rounded(tmp_path: Path) -> None:
    layer = nn.Linear(8, 8)

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.register_buffer("count", torch.zeros(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x.mT @ x
            return layer(x) + self.count.mean()

    x = torch.randn(5, 8)
    path = precast.package(
        {"forward": (layer, (x,)), "step": (Step(), (x,))}, path=tmp_path / "two.precast", options=BF16
    )
    loaded = precast.runtime.load(path)
    assert numpy.asarray(loaded.state["count"]).dtype == numpy.float32
    assert sum(name.endswith("weight") for name in loaded.state) == 1
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), layer(x), atol=0.05, rtol=0.05)
        for times in (1, 2):
            expected = layer(x) + times * (x.mT @ x).mean()
            torch.testing.assert_close(loaded["step"](x), expected, atol=0.05, rtol=0.05)


def test_compiled_functions_refuse_it() -> None:
    with pytest.raises(OptionError, match=r"an option of packages[\s\S]*autocast"):
        precast.compile(nn.ReLU(), options=BF16)
    with pytest.raises(OptionError, match="bf16"):
        precast.package(nn.ReLU(), (torch.ones(2),), path="unused", options={"precision": "half"})
