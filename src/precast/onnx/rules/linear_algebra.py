"""Systems of linear equations, inverses, determinants and Cholesky factors: a ``Scan`` over the columns.

Before: ``solve(A, B)``
After:  Gauss-Jordan elimination of ``[A | B]``, with the largest element of each column as its pivot
"""

from typing import Any

import onnx_ir as ir

from precast.onnx.rules.loops import scan
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule


@rule("aten::linalg_inv", "aten::inverse")
def inverse(a: Any) -> Any:
    return _solution(a, identity(a))


@rule("aten::linalg_inv_ex")
def inverse_and_errors(a: Any, *, check_errors: bool = False) -> Any:
    return inverse(a), no_errors(a)


@rule("aten::_linalg_solve_ex")
def solve_and_errors(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """The solution; torch's factors beside it serve the backward alone."""
    return solve(a, b, left=left), None, None, no_errors(a)


@rule("aten::linalg_solve")
def solve(a: Any, b: Any, *, left: bool = True) -> Any:
    is_vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and list(b.shape) == list(a.shape)[:-1])
    right = op.Unsqueeze(b, integers(-1)) if is_vector else b
    if left:
        result = _solution(a, right)
    else:
        rank, own_rank = len(b.shape) + is_vector, len(a.shape)
        solved = _solution(transposed(a, own_rank), transposed(right, rank))
        result = transposed(solved, max(rank, own_rank))
    return op.Squeeze(result, integers(-1)) if is_vector else result


@rule("aten::linalg_solve_triangular")
def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    rank = len(a.shape)
    triangle = op.Trilu(a, integer(0), upper=int(upper))
    if unitriangular:
        triangle = op.Add(op.Trilu(a, integer(1 if upper else -1), upper=int(upper)), identity(a))
    if left:
        return _solution(triangle, b)
    solved = _solution(transposed(triangle, rank), transposed(b, len(b.shape)))
    return transposed(solved, max(rank, len(b.shape)))


@rule("aten::triangular_solve")
def triangular_solve(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    matrix = transposed(a, len(a.shape)) if transpose else a
    solved = solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular)
    return solved, op.Identity(a)


@rule("aten::_linalg_slogdet")
def sign_and_log_determinant(a: Any) -> Any:
    _, pivots, swaps = _eliminated(flat(a))
    sign = op.ReduceProd(op.Mul(op.Sign(pivots), swaps), integers(0), keepdims=0)
    size = op.ReduceSum(op.Log(op.Abs(pivots)), integers(0), keepdims=0)
    batch = op.Shape(a, end=-2)
    return op.Reshape(sign, batch), op.Reshape(size, batch), None, None


@rule("aten::linalg_cholesky_ex")
def cholesky_factor(a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    return cholesky(a, upper), no_errors(a)


@rule("aten::cholesky", "aten::linalg_cholesky")
def cholesky(a: Any, upper: bool = False) -> Any:
    matrices = flat(op.Transpose(a, perm=_swapped(len(a.shape))) if upper else a)
    rows = row_numbers(matrices)

    def step(factor: Any, column: Any, k: Any) -> tuple[list[Any], list[Any]]:
        own = op.Unsqueeze(op.Gather(factor, k, axis=1), integers(2))
        rest = op.Sub(column, op.Squeeze(op.MatMul(factor, own), integers(2)))
        root = op.Unsqueeze(op.Sqrt(op.Gather(rest, k, axis=1)), integers(1))
        below = op.Where(op.GreaterOrEqual(rows, k), op.Div(rest, root), number(0, a))
        is_own_column = op.Equal(op.Unsqueeze(rows, integers(0)), k)
        return [op.Where(is_own_column, op.Unsqueeze(below, integers(2)), factor)], []

    zeros = op.ConstantOfShape(op.Shape(matrices), value=ir.tensor([0], dtype=a.dtype))
    (lower,) = scan(step, [zeros], [(matrices, 2), (rows, 0)], output_axis=0)
    result = op.Reshape(lower, op.Shape(a))
    return transposed(result, len(a.shape)) if upper else result


@rule("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    return _solution(_product(factor, upper), b)


@rule("aten::cholesky_inverse")
def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    return _solution(_product(factor, upper), identity(factor))


def _product(factor: Any, upper: bool) -> Any:
    """The matrix of a Cholesky factor, whose other triangle may hold anything."""
    triangle = op.Trilu(factor, integer(0), upper=int(upper))
    other = transposed(triangle, len(factor.shape))
    return op.MatMul(other, triangle) if upper else op.MatMul(triangle, other)


def _solution(a: Any, b: Any) -> Any:
    """``x`` of ``a @ x == b``, for batches of both that are broadcast."""
    first, second = (op.ReduceSum(matrix, integers(-2, -1), keepdims=1) for matrix in (a, b))
    batch = op.Shape(op.Add(first, second), end=-2)
    whole = [op.Expand(each, op.Concat(batch, op.Shape(each, start=-2), axis=0)) for each in (a, b)]
    reduced, _, _ = _eliminated(flat(op.Concat(*whole, axis=-1)))
    size = op.Shape(a, start=-1)
    solved = op.Slice(reduced, size, integers(2**62), integers(-1))
    return op.Reshape(solved, op.Concat(batch, op.Shape(b, start=-2), axis=0))


def _eliminated(matrices: Any) -> tuple[Any, Any, Any]:
    """``[A | B]`` with A reduced to the identity; the pivots, and -1 for each row exchange."""
    rows = row_numbers(matrices)

    def step(current: Any, k: Any) -> tuple[list[Any], list[Any]]:
        candidates = op.Where(op.GreaterOrEqual(rows, k), op.Abs(op.Gather(current, k, axis=2)), number(-1, matrices))
        best = op.ArgMax(candidates, axis=1, keepdims=1)
        is_own, is_best = op.Equal(rows, k), op.Equal(rows, best)
        order = op.Where(is_own, best, op.Where(is_best, k, op.Expand(rows, op.Shape(candidates))))
        swapped = op.GatherElements(current, op.Expand(op.Unsqueeze(order, integers(2)), op.Shape(current)), axis=1)
        own = op.Gather(swapped, k, axis=1)
        pivot = op.Unsqueeze(op.Gather(own, k, axis=1), integers(1))
        scaled = op.Unsqueeze(op.Div(own, pivot), integers(1))
        factors = op.Unsqueeze(op.Gather(swapped, k, axis=2), integers(2))
        reduced = op.Where(op.Unsqueeze(is_own, integers(1)), scaled, op.Sub(swapped, op.Mul(factors, scaled)))
        sign = op.Where(op.Equal(best, k), number(1, matrices), number(-1, matrices))
        return [reduced], [op.Squeeze(pivot, integers(1)), op.Squeeze(sign, integers(1))]

    reduced, pivots, signs = scan(step, [matrices], [(rows, 0)], output_axis=0)
    return reduced, pivots, signs


def row_numbers(matrices: Any) -> Any:
    """The row numbers."""
    return op.Range(integer(0), op.Squeeze(op.Shape(matrices, start=-2, end=-1)), integer(1))


def flat(matrices: Any) -> Any:
    """All batches in one dimension."""
    together = op.Reshape(matrices, op.Concat(integers(-1), op.Shape(matrices, start=-2), axis=0))
    together.dtype = matrices.dtype
    return together


def identity(like: Any) -> Any:
    zeros = op.ConstantOfShape(op.Shape(like, start=-2), value=ir.tensor([0], dtype=like.dtype))
    return op.EyeLike(zeros, dtype=int(like.dtype))


def transposed(x: Any, rank: int) -> Any:
    return op.Transpose(x, perm=_swapped(rank))


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def no_errors(a: Any) -> Any:
    """Torch's code for success, for each matrix; ONNX models cannot report a singular one."""
    return op.ConstantOfShape(op.Shape(a, end=-2), value=ir.tensor([0], dtype=ir.DataType.INT32))
