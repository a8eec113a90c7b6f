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


def positive_rows(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-2])


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


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.qr,
        lambda x: torch.linalg.qr(x, mode="complete"),
        torch.linalg.lu,
        lambda x: torch.lu_solve(x[..., :, :1], *torch.linalg.lu_factor(positive_rows(x))),
        lambda x: torch.matrix_exp(x @ x.mT),
    ],
)
def test_factors_of_batches_of_any_size(function):
    sizes = {0: Dim("batch", min=1), 1: Dim("rows", min=2), 2: Dim("columns", min=2)}
    program = export(function, (torch.randn(3, 4, 5),), dynamic_shapes=(sizes,))
    for shape in ((1, 5, 3), (4, 3, 3)):
        x = torch.randn(shape) * 0.7
        torch.testing.assert_close(program.call_as_model(x), function(x), rtol=1e-3, atol=1e-3)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.svdvals,
        torch.linalg.pinv,
        torch.linalg.matrix_rank,
        torch.linalg.cond,
        lambda x: torch.linalg.matrix_norm(x, "nuc"),
        lambda x: torch.linalg.eigvalsh(x @ x.mT - 2 * torch.eye(x.shape[-2])),
        lambda x: torch.linalg.lstsq(x, x[..., :1]).solution,
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 5), (7, 4)])
def test_numbers_made_of_singular_values(function, shape: tuple[int, ...]):
    torch.manual_seed(1)
    x = torch.randn(shape)
    torch.testing.assert_close(export(function, (x,)).call_as_model(x), function(x), rtol=1e-3, atol=1e-4)


@pytest.mark.thinned
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5), (6, 4), (4, 4)])
def test_singular_vectors_decompose_the_matrix(full: bool, shape: tuple[int, ...]):
    """Their signs are free, so that verification cannot compare them; one column here is the sum of two others."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    x[..., 2] = x[..., 0] + x[..., 1]
    program = export(lambda x: torch.linalg.svd(x, full_matrices=full), (x,), verify=False)
    left, values, right = program(x)
    expected = torch.linalg.svd(x, full_matrices=full)
    assert (left.shape, right.shape) == (expected.U.shape, expected.Vh.shape)
    torch.testing.assert_close(values, expected.S, rtol=1e-4, atol=1e-5)
    count = values.shape[-1]
    torch.testing.assert_close(
        left[..., :count] * values.unsqueeze(-2) @ right[..., :count, :], x, rtol=1e-4, atol=1e-5
    )
    for product in (left.mT @ left, right @ right.mT):
        torch.testing.assert_close(product, torch.eye(product.shape[-1]).expand_as(product), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigenvectors_of_symmetric_matrices(triangle: str):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 5)
    program = export(lambda x: torch.linalg.eigh(x, UPLO=triangle), (x,), verify=False)
    values, vectors = program(x)
    half = x.tril() + x.tril(-1).mT if triangle == "L" else x.triu() + x.triu(1).mT
    torch.testing.assert_close(values, torch.linalg.eigvalsh(x, UPLO=triangle), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(half @ vectors, vectors * values.unsqueeze(-2), rtol=1e-4, atol=1e-5)


def test_signs_that_cancel_out_are_verified():
    """The nearest rotation to a matrix does not depend on the signs of singular vectors."""

    def nearest(x):
        left, _, right = torch.linalg.svd(x)
        return left @ right

    assert "example inputs" in export(nearest, (matrices(2, 3, 3),)).verification.checked
