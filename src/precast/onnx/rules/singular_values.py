"""Singular values and operators based on them, by Jacobi rotations in double precision.

Before: ``linalg_svdvals(a)``
After:  a ``Scan`` whose steps rotate half of the columns against the other half, until all are orthogonal; singular
values are then the lengths of the columns

The signs of singular vectors, and the directions for equal values, are arbitrary: LAPACK chooses others.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from precast.onnx.rules.factorizations import qr
from precast.onnx.rules.linear_algebra import flat, identity, transposed
from precast.onnx.rules.loops import scan
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule, static_size

_DOUBLE = ir.DataType.DOUBLE
_SWEEPS = 12
"""Each sweep rotates every pair of columns once; in the end, each about squares the remaining error."""


def _rounds(count: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Every pair of an even number of columns once, as rounds of disjoint pairs; and the columns' final positions.

    A round-robin tournament: one stays, the others move on by one place.
    """
    players = list(range(count))
    firsts, seconds, places = [], [], []
    for _ in range(count - 1):
        first, second = players[: count // 2], players[: count // 2 - 1 : -1]
        firsts.append(first)
        seconds.append(second)
        places.append(np.argsort([*first, *second]).tolist())
        players = [players[0], players[-1], *players[1:-1]]
    return firsts, seconds, places


def _constant(values: list[list[int]]) -> Any:
    return op.Constant(value=ir.tensor(values, dtype=ir.DataType.INT64))


def _decomposed(a: Any, rows: int, columns: int) -> tuple[Any, Any, Any]:
    """Singular values, the largest first; the columns that have these lengths, and the accumulated rotations.

    For batches in one dimension, with at least as many rows as columns.
    """
    even = columns + columns % 2
    wide = op.Cast(flat(a), to=_DOUBLE)
    unit = op.Constant(value=ir.tensor(np.eye(columns)[None]))
    unit = op.Expand(unit, op.Concat(op.Shape(wide, end=1), op.Shape(unit, start=1), axis=0))
    # Both are rotated alike.
    both = op.Concat(wide, unit, axis=1)
    if even > columns:
        both = op.Pad(both, integers(0, 0, 0, 0, 0, 1))
    both.dtype = _DOUBLE
    zero, one = number(0.0, both), number(1.0, both)

    def step(current: Any, first: Any, second: Any, place: Any) -> tuple[list[Any], list[Any]]:
        left, right = op.Gather(current, first, axis=2), op.Gather(current, second, axis=2)
        own, other = (op.Slice(each, integers(0), integers(rows), integers(1)) for each in (left, right))
        overlap = op.ReduceSum(op.Mul(own, other), integers(1), keepdims=1)
        difference = op.Sub(*(op.ReduceSumSquare(each, integers(1), keepdims=1) for each in (other, own)))
        is_right = op.Equal(overlap, zero)
        slope = op.Div(difference, op.Where(is_right, one, op.Add(overlap, overlap)))
        reach = op.Add(op.Abs(slope), op.Sqrt(op.Add(one, op.Mul(slope, slope))))
        tangent = op.Div(op.Where(op.Less(slope, zero), number(-1.0, both), one), reach)
        tangent = op.Where(is_right, zero, tangent)
        cosine = op.Reciprocal(op.Sqrt(op.Add(one, op.Mul(tangent, tangent))))
        sine = op.Mul(cosine, tangent)
        turned = op.Sub(op.Mul(cosine, left), op.Mul(sine, right)), op.Add(op.Mul(sine, left), op.Mul(cosine, right))
        return [op.Gather(op.Concat(*turned, axis=2), place, axis=2)], []

    schedule = [(_constant(values * _SWEEPS), 0) for values in _rounds(even)]
    (turned,) = scan(step, [both], schedule, output_axis=0)
    columns_of = op.Slice(turned, integers(0), integers(rows), integers(1))
    lengths = op.Sqrt(op.ReduceSumSquare(columns_of, integers(1), keepdims=0))
    values, order = op.TopK(lengths, integers(columns), axis=1)
    values.dtype = _DOUBLE
    places = op.Expand(op.Unsqueeze(order, integers(1)), op.Concat(op.Shape(turned, end=2), integers(columns), axis=0))
    turned = op.GatherElements(turned, places, axis=2)
    rotations = op.Slice(turned, integers(rows), integers(rows + columns), integers(1))
    lengths = op.Slice(turned, integers(0), integers(rows), integers(1))
    lengths.dtype, lengths.shape = _DOUBLE, ir.Shape([None, rows, columns])
    return values, lengths, rotations


def _tall(a: Any) -> tuple[Any, int, int, bool]:
    """The matrix or its transpose, whichever has at least as many rows as columns."""
    rows, columns = (static_size(a, axis, "A decomposition by singular values") for axis in (-2, -1))
    if rows >= columns:
        return a, rows, columns, False
    across = transposed(a, len(a.shape))
    across.dtype = a.dtype
    return across, columns, rows, True


def _result(values: Any, a: Any, ends: int) -> Any:
    """Restore the element type and the batch dimensions of ``a``."""
    shape = op.Concat(op.Shape(a, end=-2), op.Shape(values, start=-ends), axis=0)
    return op.Reshape(op.Cast(values, to=a.dtype), shape)


@rule("aten::_linalg_svd")
def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    tall, rows, columns, is_across = _tall(a)
    values, lengths, rotations = _decomposed(tall, rows, columns)
    found = _result(values, a, 1)
    if not compute_uv:
        nothing = op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=a.dtype))
        return nothing, found, nothing
    # Not divided by their lengths: where those are zero, QR completes the basis.
    vectors, reduced = qr(lengths, "complete" if full_matrices else "reduced")
    signs = op.Where(op.Less(op.Unsqueeze(_diagonal(reduced, columns), integers(1)), number(0.0, values)), -1.0, 1.0)
    own = op.Mul(op.Slice(vectors, integers(0), integers(columns), integers(2)), op.Cast(signs, to=_DOUBLE))
    vectors = op.Concat(own, op.Slice(vectors, integers(columns), integers(rows), integers(2)), axis=2)
    left, right = (rotations, vectors) if is_across else (vectors, rotations)
    return _result(left, a, 2), found, _result(op.Transpose(right, perm=[0, 2, 1]), a, 2)


def _diagonal(matrices: Any, count: int) -> Any:
    """For batches in one dimension."""
    places = op.Reshape(op.Range(integer(0), integer(count), integer(1)), integers(1, 1, -1))
    places = op.Expand(places, op.Concat(op.Shape(matrices, end=1), integers(1, count), axis=0))
    return op.Squeeze(op.GatherElements(matrices, places, axis=1), integers(1))


@rule("aten::linalg_pinv.atol_rtol_tensor")
def pseudoinverse(a: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    matrix = a
    if hermitian:
        lower, below = op.Trilu(a, integer(0), upper=0), op.Trilu(a, integer(-1), upper=0)
        matrix = op.Add(lower, transposed(below, len(a.shape)))
        matrix.dtype, matrix.shape = a.dtype, a.shape
    return _pseudoinverse(matrix, atol, rtol)[0]


def _pseudoinverse(a: Any, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """The pseudoinverse, and the numerical rank."""
    tall, rows, columns, is_across = _tall(a)
    values, lengths, rotations = _decomposed(tall, rows, columns)
    usual = number(float(np.finfo(a.dtype.numpy()).eps * rows), values)
    absolute = number(0.0, values) if atol is None else _limit(atol)
    if rtol is None:
        rtol = (
            usual if atol is None else op.Where(op.Greater(absolute, number(0.0, values)), number(0.0, values), usual)
        )
    else:
        rtol = _limit(rtol)
    largest = op.ReduceMax(values, integers(1), keepdims=1)
    counts = op.Greater(values, op.Max(absolute, op.Mul(rtol, largest)))
    squares = op.Where(counts, op.Mul(values, values), number(1.0, values))
    factors = op.Unsqueeze(op.Where(counts, op.Reciprocal(squares), number(0.0, values)), integers(1))
    inverse = op.MatMul(op.Mul(rotations, factors), op.Transpose(lengths, perm=[0, 2, 1]))
    inverse = op.Transpose(inverse, perm=[0, 2, 1]) if is_across else inverse
    rank = op.ReduceSum(op.Cast(counts, to=ir.DataType.INT64), integers(1), keepdims=0)
    return _result(inverse, a, 2), op.Reshape(rank, op.Shape(a, end=-2))


def _limit(value: Any) -> Any:
    """A tolerance for each matrix of the batch, or one for all."""
    return op.Reshape(op.Cast(value, to=_DOUBLE), integers(-1, 1))


@rule("aten::_linalg_eigh")
def eigenvalues_of_symmetric(a: Any, triangle: str = "L", compute_v: bool = True) -> Any:
    """Eigenvalues of a matrix that is shifted to be positive, where they are its singular values."""
    size = static_size(a, -1, "Eigenvalues")
    kept = int(triangle.upper() == "U")
    half = op.Trilu(a, integer(0), upper=kept)
    other = op.Trilu(a, integer(1 if kept else -1), upper=kept)
    matrix = op.Cast(op.Add(half, transposed(other, len(a.shape))), to=_DOUBLE)
    matrix = flat(matrix)
    matrix.dtype = _DOUBLE
    bound = op.ReduceMax(op.ReduceSum(op.Abs(matrix), integers(2), keepdims=1), integers(1), keepdims=1)
    moved = op.Add(matrix, op.Mul(bound, identity(matrix)))
    moved.dtype = _DOUBLE
    values, _, vectors = _decomposed(moved, size, size)
    values = op.Sub(values, op.Squeeze(bound, integers(2)))
    backwards = integers(*range(size - 1, -1, -1))
    ascending = _result(op.Gather(values, backwards, axis=1), a, 1)
    if not compute_v:
        return ascending, op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=a.dtype))
    return ascending, _result(op.Gather(vectors, backwards, axis=2), a, 2)


@rule("aten::linalg_lstsq")
def least_squares(a: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The least-squares solution of minimal norm, the residual squares, and the ranks."""
    is_vector = len(b.shape) == len(a.shape) - 1 or len(b.shape) == 1
    right = op.Unsqueeze(b, integers(-1)) if is_vector else b
    limit = None if rcond is None else number(float(rcond), ir.Value(type=ir.TensorType(_DOUBLE)))
    inverse, rank = _pseudoinverse(a, None, limit)
    solution = op.MatMul(inverse, right)
    nothing = op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=a.dtype))
    left = nothing
    if static_size(a, -2, "Least squares") > static_size(a, -1, "Least squares"):
        left = op.ReduceSumSquare(op.Sub(op.MatMul(a, solution), right), integers(-2), keepdims=0)
    if driver in ("gelsd", "gelss"):
        tall, rows, columns, _ = _tall(a)
        lengths = _result(_decomposed(tall, rows, columns)[0], a, 1)
    else:
        lengths = nothing
    no_rank = op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=ir.DataType.INT64))
    solution = op.Squeeze(solution, integers(-1)) if is_vector else solution
    return solution, left, no_rank if driver == "gels" else rank, lengths
