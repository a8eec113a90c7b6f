"""Factorizations of matrices by elimination and reflections, and matrix exponentials: a ``Scan`` over the columns.

Before: ``q, r = linalg_qr(a)``
After:  Householder reflections, as LAPACK stores them: vectors below the diagonal of ``r``, factors beside it
"""

from typing import Any

import onnx_ir as ir

from precast.onnx.rules.linear_algebra import flat, identity, no_errors, row_numbers, solve_triangular, transposed
from precast.onnx.rules.loops import loop, scan
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule


def _steps(matrices: Any) -> Any:
    """A sequence as long as the shorter side."""
    shorter = op.ReduceMin(op.Shape(matrices, start=-2), keepdims=0)
    return op.Range(integer(0), shorter, integer(1))


def _column_numbers(matrices: Any) -> Any:
    return op.Range(integer(0), op.Squeeze(op.Shape(matrices, start=-1)), integer(1))


def _leading(a: Any, *, axis: int) -> Any:
    """The first rows or columns, as many as the shorter side has."""
    shorter = op.ReduceMin(op.Shape(a, start=-2), keepdims=1)
    result = op.Slice(a, integers(0), shorter, integers(axis))
    result.dtype = a.dtype
    return result


def _batched(values: Any, a: Any, ends: int) -> Any:
    """Restore the batch dimensions of ``a``; the last ``ends`` dimensions are the values' own."""
    return op.Reshape(values, op.Concat(op.Shape(a, end=-2), op.Shape(values, start=-ends), axis=0))


def _eliminated(a: Any, *, pivot: bool) -> tuple[Any, Any, Any]:
    """Both triangles in one matrix, the pivots, and the resulting permutation of rows."""
    matrices = flat(a)
    rows, columns = row_numbers(matrices), _column_numbers(matrices)
    order = op.Expand(rows, op.Concat(op.Shape(matrices, end=1), op.Shape(rows), axis=0))

    def step(current: Any, order: Any, k: Any) -> tuple[list[Any], list[Any]]:
        best = op.Expand(k, op.Concat(op.Shape(current, end=1), integers(1), axis=0))
        if pivot:
            size = op.Abs(op.Gather(current, k, axis=2))
            best = op.ArgMax(op.Where(op.GreaterOrEqual(rows, k), size, number(-1, a)), axis=1, keepdims=1)
        exchange = op.Where(op.Equal(rows, k), best, op.Where(op.Equal(rows, best), k, rows))
        places = op.Expand(op.Unsqueeze(exchange, integers(2)), op.Shape(current))
        current, order = op.GatherElements(current, places, axis=1), op.GatherElements(order, exchange, axis=1)
        own, column = op.Gather(current, k, axis=1), op.Gather(current, k, axis=2)
        head = op.Unsqueeze(op.Gather(own, k, axis=1), integers(1))
        head = op.Where(op.Equal(head, number(0, a)), number(1, a), head)
        is_below = op.Greater(rows, k)
        factors = op.Unsqueeze(op.Where(is_below, op.Div(column, head), number(0, a)), integers(2))
        reduced = op.Sub(current, op.Mul(factors, op.Unsqueeze(own, integers(1))))
        is_factor = op.And(op.Unsqueeze(is_below, integers(1)), op.Equal(columns, k))
        current = op.Where(is_factor, factors, op.Where(op.Greater(columns, k), reduced, current))
        return [current, order], [op.Squeeze(best, integers(1))]

    packed, order, pivots = scan(step, [matrices, order], [(_steps(matrices), 0)], output_axis=1)
    packed.dtype = a.dtype
    pivots = op.Cast(op.Add(pivots, integer(1)), to=ir.DataType.INT32)
    return op.Reshape(packed, op.Shape(a)), _batched(pivots, a, 1), _batched(order, a, 1)


def _permutation(order: Any, a: Any) -> Any:
    """The permutation matrix that moves rows back to their original positions."""
    rows = row_numbers(a)
    return op.CastLike(op.Equal(op.Unsqueeze(order, integers(-2)), op.Unsqueeze(rows, integers(1))), a)


@rule("aten::linalg_lu_factor_ex")
def lu_factors(a: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    packed, pivots, _ = _eliminated(a, pivot=pivot)
    return packed, pivots, no_errors(a)


@rule("aten::linalg_lu")
def lu(a: Any, *, pivot: bool = True) -> Any:
    packed, _, order = _eliminated(a, pivot=pivot)
    packed.dtype = a.dtype
    return _permutation(order, a), _lower(packed), _upper(packed)


def _lower(packed: Any) -> Any:
    columns = _leading(packed, axis=-1)
    below = op.Trilu(columns, integer(-1), upper=0)
    is_diagonal = op.Equal(op.Unsqueeze(row_numbers(columns), integers(1)), _column_numbers(columns))
    return op.Where(is_diagonal, number(1, packed), below)


def _upper(packed: Any) -> Any:
    return op.Trilu(_leading(packed, axis=-2), integer(0), upper=1)


@rule("aten::lu_unpack")
def lu_unpack(packed: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    nothing = op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=packed.dtype))
    permutation = _permutation(_order_of(pivots, packed), packed) if unpack_pivots else nothing
    return permutation, *((_lower(packed), _upper(packed)) if unpack_data else (nothing, nothing))


def _order_of(pivots: Any, packed: Any) -> Any:
    """The permutation of rows after all exchanges."""
    rows = row_numbers(packed)
    whole = op.Reshape(pivots, op.Concat(integers(-1), op.Shape(pivots, start=-1), axis=0))
    others = op.Sub(op.Cast(whole, to=ir.DataType.INT64), integer(1))
    start = op.Expand(rows, op.Concat(op.Shape(others, end=1), op.Shape(rows), axis=0))

    def step(order: Any, other: Any, k: Any) -> tuple[list[Any], list[Any]]:
        best = op.Unsqueeze(other, integers(1))
        exchange = op.Where(op.Equal(rows, k), best, op.Where(op.Equal(rows, best), k, rows))
        return [op.GatherElements(order, exchange, axis=1)], []

    numbers = op.Range(integer(0), op.Squeeze(op.Shape(others, start=1)), integer(1))
    (order,) = scan(step, [start], [(others, 1), (numbers, 0)], output_axis=0)
    return op.Reshape(order, op.Concat(op.Shape(pivots, end=-1), op.Shape(rows), axis=0))


@rule("aten::linalg_lu_solve")
def lu_solve(packed: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    permutation = _permutation(_order_of(pivots, packed), packed)
    rank = len(packed.shape)
    right = b if left else transposed(b, len(b.shape))
    if adjoint == left:
        # The transposed system.
        across = transposed(packed, rank)
        across.dtype, across.shape = packed.dtype, packed.shape
        result = _triangular(across, right, upper=False)
        result = _triangular(across, result, upper=True, unitriangular=True)
        result = op.MatMul(permutation, result)
    else:
        result = op.MatMul(transposed(permutation, rank), right)
        result = _triangular(packed, result, upper=False, unitriangular=True)
        result = _triangular(packed, result, upper=True)
    return result if left else transposed(result, max(rank, len(b.shape)))


def _triangular(a: Any, b: Any, *, upper: bool, unitriangular: bool = False) -> Any:
    b.dtype = a.dtype
    return solve_triangular(a, b, upper=upper, unitriangular=unitriangular)


@rule("aten::geqrf")
def reflections(a: Any) -> Any:
    matrices = flat(a)
    rows, columns = row_numbers(matrices), _column_numbers(matrices)
    zero, one = number(0, a), number(1, a)

    def step(current: Any, k: Any) -> tuple[list[Any], list[Any]]:
        column = op.Gather(current, k, axis=2)
        below = op.Where(op.Greater(rows, k), column, zero)
        head = op.Unsqueeze(op.Gather(column, k, axis=1), integers(1))
        tail = op.ReduceSumSquare(below, integers(1), keepdims=1)
        length = op.Sqrt(op.Add(op.Mul(head, head), tail))
        mirrored = op.Where(op.Less(head, zero), length, op.Neg(length))
        # A column that is already reflected is unchanged.
        is_done = op.Equal(tail, zero)
        size = op.Where(is_done, zero, op.Div(op.Sub(mirrored, head), op.Where(is_done, one, mirrored)))
        mirrored = op.Where(is_done, head, mirrored)
        scaled = op.Div(below, op.Where(is_done, one, op.Sub(head, mirrored)))
        vector = op.Where(op.Equal(rows, k), one, scaled)
        reflected = _reflected(current, vector, size)
        stored = op.Where(op.Equal(rows, k), mirrored, op.Where(op.Greater(rows, k), vector, column))
        kept = op.Where(op.Greater(columns, k), reflected, current)
        return [op.Where(op.Equal(columns, k), op.Unsqueeze(stored, integers(2)), kept)], [
            op.Squeeze(size, integers(1))
        ]

    packed, sizes = scan(step, [matrices], [(_steps(matrices), 0)], output_axis=1)
    result = op.Reshape(packed, op.Shape(a))
    result.dtype = a.dtype
    return result, _batched(sizes, a, 1)


def _reflected(matrices: Any, vector: Any, size: Any) -> Any:
    """``(1 - size · vector · vectorᵀ) · matrices``."""
    along = op.MatMul(op.Unsqueeze(vector, integers(1)), matrices)
    scaled = op.Unsqueeze(op.Mul(vector, size), integers(2))
    return op.Sub(matrices, op.MatMul(scaled, along))


def _applied(packed: Any, sizes: Any, target: Any, *, last_first: bool) -> Any:
    """Apply the reflections in sequence, over batches in one dimension."""
    packed = flat(packed)
    sizes = op.Reshape(sizes, op.Concat(integers(-1), op.Shape(sizes, start=-1), axis=0))
    sizes.dtype = packed.dtype
    rows, zero, one = row_numbers(packed), number(0, packed), number(1, packed)
    numbers = op.Range(integer(0), op.Squeeze(op.Shape(sizes, start=1)), integer(1))

    def step(current: Any, size: Any, k: Any) -> tuple[list[Any], list[Any]]:
        below = op.Where(op.Greater(rows, k), op.Gather(packed, k, axis=2), zero)
        vector = op.Where(op.Equal(rows, k), one, below)
        return [_reflected(current, vector, op.Unsqueeze(size, integers(1)))], []

    (result,) = scan(step, [target], [(sizes, 1), (numbers, 0)], output_axis=0, is_reverse=last_first)
    return result


def _unit_columns(packed: Any, count: Any) -> Any:
    """The first columns of the identity, for each matrix."""
    rows = op.Unsqueeze(row_numbers(packed), integers(1))
    is_diagonal = op.Equal(rows, op.Range(integer(0), op.Squeeze(count), integer(1)))
    batch = op.Shape(flat(packed), end=1)
    shape = op.Concat(batch, op.Shape(is_diagonal), axis=0)
    columns = op.Expand(op.Cast(is_diagonal, to=packed.dtype), shape)
    columns.dtype = packed.dtype
    return columns


@rule("aten::linalg_householder_product", "aten::orgqr")
def product_of_reflections(packed: Any, sizes: Any) -> Any:
    columns = _unit_columns(packed, op.Shape(packed, start=-1))
    return op.Reshape(_applied(packed, sizes, columns, last_first=True), op.Shape(packed))


@rule("aten::linalg_qr")
def qr(a: Any, mode: str = "reduced") -> Any:
    packed, sizes = reflections(a)
    if mode == "r":
        return op.ConstantOfShape(integers(0), value=ir.tensor([0], dtype=a.dtype)), _upper(packed)
    rows = op.Shape(packed, start=-2, end=-1)
    count = rows if mode == "complete" else op.ReduceMin(op.Shape(packed, start=-2), keepdims=1)
    columns = _applied(packed, sizes, _unit_columns(packed, count), last_first=True)
    right = op.Trilu(packed, integer(0), upper=1) if mode == "complete" else _upper(packed)
    return _batched(columns, a, 2), right


@rule("aten::ormqr")
def times_reflections(packed: Any, sizes: Any, other: Any, left: bool = True, transpose: bool = False) -> Any:
    target = flat(other if left else transposed(other, len(other.shape)))
    target.dtype = other.dtype
    result = _applied(packed, sizes, target, last_first=left != transpose)
    return op.Reshape(result if left else transposed(result, 3), op.Shape(other))


_TERMS = 18
"""The number of terms with which the exponential series is exact in double precision for matrices of norm 1/2."""


@rule("aten::linalg_matrix_exp", "aten::matrix_exp")
def exponential(a: Any) -> Any:
    """Scaling and squaring: the matrix is halved until it is small, and the series squared as often."""
    wide = op.Cast(flat(a), to=ir.DataType.DOUBLE)
    wide.dtype = ir.DataType.DOUBLE
    size = op.ReduceMax(op.ReduceSum(op.Abs(wide), integers(1), keepdims=1), integers(2), keepdims=1)
    least = number(0.5, wide)
    halvings = op.Ceil(op.Div(op.Log(op.Max(op.Div(size, least), number(1, wide))), number(0.6931471805599453, wide)))
    small = op.Div(wide, op.Pow(number(2, wide), halvings))
    unit = identity(wide)
    result = unit
    for term in range(_TERMS, 0, -1):
        result = op.Add(unit, op.Div(op.MatMul(small, result), number(term, wide)))
    result.dtype = ir.DataType.DOUBLE

    def step(done: Any, current: Any) -> list[Any]:
        is_due = op.Less(op.Cast(done, to=ir.DataType.DOUBLE), halvings)
        return [op.Where(is_due, op.MatMul(current, current), current)]

    count = op.Cast(op.ReduceMax(halvings, keepdims=0), to=ir.DataType.INT64)
    (result,) = loop(step, count, [result])
    return op.Reshape(op.Cast(result, to=a.dtype), op.Shape(a))
