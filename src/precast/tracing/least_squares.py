"""What ``torch.linalg.lstsq`` gives, as fake tensors: torch has no rule for it.

Sizes follow from those of the matrices, but for the residuals of some drivers: those are there for full rank only.
"""

import torch
from torch import Tensor

from precast.errors import DataDependentError

_DEFAULT_DRIVER = "gelsy"
_WITH_SINGULAR_VALUES = ("gelss", "gelsd")


def fake_lstsq(
    matrix: Tensor, right: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solution, residuals, rank and singular values; call it inside of the fake mode."""
    driver = driver or _DEFAULT_DRIVER
    rows, columns = matrix.shape[-2:]
    if rows > columns and driver in _WITH_SINGULAR_VALUES:
        raise DataDependentError(
            f"linalg.lstsq with the driver {driver!r} gives residuals only if the matrices have full rank.",
            why="whether they have is known when the program runs, and a graph needs to know sizes before",
            fix="Use driver='gels' for matrices of full rank, or driver='gelsy' and compute the residuals yourself.",
        )
    is_vector = right.ndim == 1 or (matrix.ndim - 1 == right.ndim and right.shape == matrix.shape[:-1])
    count = 1 if is_vector else right.shape[-1]
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[: -1 if is_vector else -2])
    # LAPACK writes column by column over the right side, which may be longer than the solution.
    solution = matrix.new_empty((*batch, count, max(rows, columns))).mT[..., :columns, :]
    nothing = matrix.new_empty(0)
    values = matrix.new_empty((*matrix.shape[:-2], min(rows, columns))) if driver in _WITH_SINGULAR_VALUES else nothing
    rank = matrix.new_empty(0 if driver == "gels" else matrix.shape[:-2], dtype=torch.int64)
    residuals = matrix.new_empty((*batch, count)) if rows > columns and driver == "gels" else matrix.new_empty(0)
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, values
