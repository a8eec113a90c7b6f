"""Linear algebra in terms of a few factorizations and solvers, for programs that run without torch.

Before: ``inverse, info = linalg_inv_ex(a)``
After:  ``lu, pivots, info = linalg_lu_factor_ex(a.mT); inverse = linalg_lu_solve(lu, pivots, eye(n), adjoint=True)``

Each function returns what the kernel of the operator of its name returns: gradients depend on these exact factors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from precast._torch_compat import aten_operators
from precast.ops.decompositions import DecompositionTable

_aten = torch.ops.aten


def _factored(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Factors of the matrix or of its transpose, and which: gradient formulas decide by the matrix's strides."""
    is_transposed = matrix.is_contiguous()
    lu, pivots, info = _aten.linalg_lu_factor_ex(matrix.mT if is_transposed else matrix)
    return lu, pivots, info, is_transposed


def _refuse_failures(info: Tensor, function: str, matrix: Tensor) -> None:
    _aten._linalg_check_errors(info, function, is_matrix=matrix.ndim == 2)


def inv_ex(matrix: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info, is_transposed = _factored(matrix)
    if check_errors:
        _refuse_failures(info, "linalg.inv_ex", matrix)
    one = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand(matrix.shape)
    return _aten.linalg_lu_solve(lu, pivots, one, adjoint=is_transposed), info


def solve_ex(
    matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    is_vector = right.ndim == 1 or (matrix.ndim - 1 == right.ndim and right.shape == matrix.shape[:-1])
    lu, pivots, info, is_transposed = _factored(matrix)
    if check_errors:
        _refuse_failures(info, "torch.linalg.solve_ex", matrix)
    sides = right.unsqueeze(-1) if is_vector else right
    found = _aten.linalg_lu_solve(lu, pivots, sides, left=left, adjoint=is_transposed)
    return found.squeeze(-1) if is_vector else found, lu, pivots, info


def _sign_of_exchanges(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    rows = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * ((pivots != rows).sum(-1) % 2).to(dtype)


def det(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _, _ = _factored(matrix)
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    return _sign_of_exchanges(pivots, matrix.dtype) * diagonal.prod(-1), lu, pivots


def slogdet(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _, _ = _factored(matrix)
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    sign = _sign_of_exchanges(pivots, matrix.dtype) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


def lu(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = _aten.linalg_lu_factor_ex(matrix, pivot=pivot)
    order, lower, upper = _aten.lu_unpack(factors, pivots, True, pivot)
    return order, lower, upper


def cholesky(matrix: Tensor, upper: bool = False) -> Tensor:
    factor, info = _aten.linalg_cholesky_ex(matrix, upper=upper)
    _refuse_failures(info, "cholesky", matrix)
    found: Tensor = factor
    return found


def cholesky_solve(right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower, high = (factor.mT, factor) if upper else (factor, factor.mT)
    halfway = _aten.linalg_solve_triangular(lower, right, upper=False)
    found: Tensor = _aten.linalg_solve_triangular(high, halfway, upper=True)
    return found


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper)


def triangular_solve(
    right: Tensor, matrix: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    used = matrix.mT if transpose else matrix
    found = _aten.linalg_solve_triangular(used, right, upper=upper != transpose, unitriangular=unitriangular)
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    return found, matrix.expand(*batch, *matrix.shape[-2:]).clone()


def pinv(matrix: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    if matrix.numel() == 0:
        return torch.zeros_like(matrix.mT)
    if rtol is None:
        usual = torch.full((), torch.finfo(matrix.dtype).eps * max(matrix.shape[-2:]), dtype=torch.float64)
        rtol = usual if atol is None else torch.where(atol > 0, 0.0, usual)
    least = torch.zeros((), dtype=torch.float64) if atol is None else atol
    if hermitian:
        values, left = torch.linalg.eigh(matrix)
        right, sizes = left, values.abs()
        largest = sizes.amax(-1, keepdim=True)
    else:
        left, values, rows = torch.linalg.svd(matrix, full_matrices=False)
        right, sizes, largest = rows.mT, values, values.narrow(-1, 0, 1)
    counts = sizes > torch.maximum(*torch.broadcast_tensors(least.unsqueeze(-1), rtol.unsqueeze(-1) * largest))
    inverted = torch.where(counts, values.reciprocal(), 0.0).to(matrix.dtype)
    return torch.matmul(right * inverted.unsqueeze(-2), left.mT)


# Newer versions of torch do not have them.
_REMOVED: dict[str, Callable[..., object]] = {"cholesky": cholesky, "triangular_solve": triangular_solve}
LINEAR_ALGEBRA: DecompositionTable = {
    _aten._linalg_det.default: det,
    _aten._linalg_slogdet.default: slogdet,
    _aten._linalg_solve_ex.default: solve_ex,
    _aten.cholesky_inverse.default: cholesky_inverse,
    _aten.cholesky_solve.default: cholesky_solve,
    _aten.linalg_inv_ex.default: inv_ex,
    _aten.linalg_lu.default: lu,
    _aten.linalg_pinv.atol_rtol_tensor: pinv,
    **{packet.default: rule for packet, rule in aten_operators(_REMOVED)},
}
