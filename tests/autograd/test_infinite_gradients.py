"""Gradients that are infinite or NaN: what eager's kernels select is selected, and not multiplied by a mask."""

from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

import precast

X = torch.tensor([[0.0, -1.0, 2.0, -1.0], [3.0, 0.0, -2.0, 0.5], [7.0, -7.0, 1.0, 1.0]])
Y = torch.tensor([[0.0, -1.5, 2.0, 1.0], [2.0, 0.0, -2.0, 0.7], [1.0, -1.0, 1.0, 3.0]])
CLASSES = torch.tensor([0, -100, 2])
COLUMNS = torch.tensor([[0, 0], [1, 2], [3, 3]])

SELECTING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "amin": lambda x: x.amin(),
    "amax": lambda x: x.amax(1),
    "min of rows": lambda x: x.min(1).values,
    "median of rows": lambda x: x.median(1).values,
    "cummax": lambda x: x.cummax(1).values,
    "sort": lambda x: x.sort(1).values,
    "relu": F.relu,
    "threshold": lambda x: F.threshold(x, 0.5, 0.0),
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by tensors": lambda x: torch.clamp(x, Y - 1, Y),
    "where": lambda x: torch.where(x > 0, x, Y),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "minimum": lambda x: torch.minimum(x, Y),
    "fmax": lambda x: torch.fmax(x, Y),
    "abs": torch.abs,
    "vector_norm": lambda x: torch.linalg.vector_norm(x, inf, dim=1),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], 2, 1),
    "gather": lambda x: x.gather(1, COLUMNS),
    "index": lambda x: x[torch.tensor([0, 0, 2])],
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0]), 2.0),
    "scatter_reduce": lambda x: torch.zeros(3, 4).scatter_reduce(1, COLUMNS, x[:, :2], "amax"),
    "tril": torch.tril,
    "nll_loss": lambda x: F.nll_loss(x, CLASSES),
    "nll_loss of each, weighted": lambda x: F.nll_loss(x, CLASSES, torch.arange(4.0), reduction="none"),
    "nll_loss of one": lambda x: F.nll_loss(x[0], torch.tensor(1)),
    "nll_loss of an image": lambda x: F.nll_loss(
        x.T[None, :, :, None].contiguous(), CLASSES[None, :, None], reduction="none"
    ),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES),
}


def _gradient(
    function: Callable[[torch.Tensor], torch.Tensor], source: torch.Tensor, pattern: tuple[float, ...]
) -> torch.Tensor:
    source = source.clone().requires_grad_()
    result = function(source)
    repeated = torch.tensor(pattern).repeat(result.numel() // len(pattern) + 1)
    result.backward(repeated[: result.numel()].reshape(result.shape))
    assert source.grad is not None
    return source.grad


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["nop", "native"])
@pytest.mark.parametrize("name", SELECTING)
def test_gradients_that_are_not_finite_are_as_in_eager(name: str, backend: str) -> None:
    compiled = precast.compile(SELECTING[name], backend=backend, fullgraph=True)
    special = X.clone()
    special[1, 1], special[0, 0], special[2, 1] = nan, inf, -inf
    for source in (X, special):
        for pattern in ((inf,), (nan,), (inf, -inf, nan, 0.5)):
            expected = _gradient(SELECTING[name], source, pattern)
            torch.testing.assert_close(_gradient(compiled, source, pattern), expected, equal_nan=True)


def test_a_mask_may_be_multiplied_with_a_number():
    mask = torch.tensor([True, False])
    assert torch.equal(precast.compile(lambda x: x * 2, backend="nop", fullgraph=True)(mask), mask * 2)
