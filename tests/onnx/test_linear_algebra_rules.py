"""Equations, inverses and factors of batches of any size."""

import pytest
import torch

from precast.onnx import export
from precast.trace.capture import Dim


def matrices(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape) + 3 * torch.eye(shape[-1])


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.slogdet,
        lambda x: torch.linalg.cholesky(positive(x)),
        lambda x: torch.linalg.solve(x, x[..., :1]),
        lambda x: torch.linalg.solve(x, x, left=False),
        lambda x: torch.linalg.solve_triangular(x, x, upper=True, unitriangular=True),
    ],
)
def test_batches_of_any_size(function):
    sizes = {0: Dim("batch", min=1), 1: Dim("n", min=2), 2: Dim("n", min=2)}
    program = export(function, (matrices(3, 4, 4),), dynamic_shapes=(sizes,))
    for x in (matrices(3, 4, 4), matrices(1, 6, 6)):
        torch.testing.assert_close(program.call_as_model(x), function(x), rtol=1e-3, atol=1e-4)


def test_rows_are_exchanged_where_a_pivot_is_zero():
    x = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    torch.testing.assert_close(export(torch.linalg.inv, (x,)).call_as_model(x), x.inverse())
    torch.testing.assert_close(export(torch.linalg.slogdet, (x,)).call_as_model(x), torch.linalg.slogdet(x))
