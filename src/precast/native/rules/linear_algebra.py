"""Factorizations, solvers and spectra of matrices: calls of LAPACK, in programs that run without torch.

Where torch is loaded, its own kernels are called back: only the targets of packages have these routines.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, maximum, minimum, product
from precast.native.loops.program import Check
from precast.native.loops.routines import LEAST_SQUARES_DRIVERS
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast
from precast.native.rules.builder import Builder, Indices, Result
from precast.native.rules.conditions import compare, place, refuse_any
from precast.native.rules.registry import DECLINED, Lowered, lowering
from precast.native.rules.view import reshaped_indices

aten = torch.ops.aten
_PIVOTS = "{} must be between 1 and the number of rows. Did you properly pass the result of lu_factor?"


def _is_single_or_double(*tensors: Buffer) -> bool:
    return all(each.dtype in ("f32", "f64") for each in tensors)


_FAILURES = (
    ("inv", "The diagonal element {1} is zero, the inversion could not be completed because the input matrix is "
            "singular."),
    ("solve", "The solver failed because the input matrix is singular."),
    ("cholesky", "The factorization could not be completed because the input is not positive-definite "
                 "(the leading minor of order {1} is not positive-definite)."),
    ("eig", "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
            "eigenvalues (error code: {1})."),
    ("svd", "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
            "singular values (error code: {1})."),
    ("lstsq", "The least squares solution could not be computed because the input matrix does not have full rank "
              "(error code: {1})."),
    ("lu_factor", "U[{1},{1}] is zero and using it on lu_solve would result in a division by zero. If you still "
                  "want to perform the factorization, consider calling linalg.lu(A, pivot) or "
                  "linalg.lu_factor_ex(A, pivot)"),
)  # fmt: skip
"""Eager's message for a positive LAPACK ``info``, by a part of the function's name."""
_NOT_FINITE = "The algorithm failed to converge because the input matrix contained non-finite values."


def _refuse_failures(builder: Builder, info: Buffer, function: str, *, is_matrix: bool) -> None:
    """Fail the call as eager does, with the position of the first matrix whose ``info`` is nonzero, and its value."""
    where = function if is_matrix else function + ": (Batch element {0})"
    message = next((text for part, text in _FAILURES if part in function), "Unknown error code: {1}.")
    zero = Constant(0, "i32")
    if "svd" in function:
        _refuse_first(builder, info, lambda value: apply("lt", value, zero), f"{where}: {_NOT_FINITE}")
    _refuse_first(builder, info, lambda value: apply("gt", value, zero), f"{where}: {message}")


def _refuse_first(builder: Builder, info: Buffer, is_wrong: Callable[[Scalar], Scalar], message: str) -> None:
    dims, total = range(len(info.shape)), product(info.shape)

    def number_of(value: Scalar, at: Indices) -> Scalar:
        (flat,) = reshaped_indices((total,), info.shape, at)
        return apply("where", is_wrong(value), IndexValue(flat, "i64"), IndexValue(total, "i64"))

    with builder.part("failed"):
        failed = builder.reduce("any", info, dims, prepare=lambda value, at: is_wrong(value), result=Result("bool", ()))
        first = builder.reduce("min", info, dims, prepare=number_of, result=Result("i64", ()))

    def shown(at: Indices) -> Scalar:
        found = place("first", Load(first, ()), total)
        status = Load(info, reshaped_indices(info.shape, (total,), (found.index,)), found.is_inside)
        return apply("where", compare("eq", at[0], 0), Load(first, ()), cast(status, "i64"))

    with builder.part("shown"):
        numbers = builder.define(shown, Result("i64", (constant(2),)))
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,), shown=numbers))


@lowering(aten._linalg_check_errors.default)
def check_errors(builder: Builder, info: Buffer, api_name: str, *, is_matrix: bool) -> Lowered:
    # Where torch is loaded, its own error is raised.
    if not builder.has_routine("lu_factor"):
        return DECLINED
    _refuse_failures(builder, info, api_name, is_matrix=is_matrix)
    return ()


@lowering(aten.linalg_cholesky_ex.default)
def cholesky(builder: Builder, source: Buffer, *, upper: bool = False, check_errors: bool = False) -> Lowered:
    if not _is_single_or_double(source):
        return DECLINED
    factor, info = builder.call("cholesky", [source], [int(upper)])
    if check_errors:
        _refuse_failures(builder, info, "linalg.cholesky_ex", is_matrix=len(source.shape) == 2)
    return factor, info


@lowering(aten.linalg_lu_factor_ex.default)
def lu_factor(builder: Builder, source: Buffer, *, pivot: bool = True, check_errors: bool = False) -> Lowered:
    if not _is_single_or_double(source) or not pivot:
        return DECLINED
    factors, pivots, info = builder.call("lu_factor", [source])
    if check_errors:
        _refuse_failures(builder, info, "torch.linalg.lu_factor_ex", is_matrix=len(source.shape) == 2)
    return factors, pivots, info


def _refuse_pivots(builder: Builder, pivots: Buffer, rows: Index, name: str) -> None:
    lowest, highest = Constant(1, "i32"), IndexValue(rows, "i32")
    refuse_any(
        builder, pivots, lambda value: apply("logical_or", apply("lt", value, lowest), apply("gt", value, highest)),
        _PIVOTS.format(name),
    )  # fmt: skip


@lowering(aten.linalg_lu_solve.default)
def lu_solve(
    builder: Builder, factors: Buffer, pivots: Buffer, right: Buffer, *, left: bool = True, adjoint: bool = False
) -> Lowered:
    if not _is_single_or_double(factors, right):
        return DECLINED
    _refuse_pivots(builder, pivots, factors.shape[-2], "linalg.lu_solve: pivots")
    return builder.call("lu_solve", [factors, pivots, right], [int(left), int(adjoint)])[0]


@lowering(aten.lu_unpack.default)
def lu_unpack(
    builder: Builder, factors: Buffer, pivots: Buffer, unpack_data: bool = True, unpack_pivots: bool = True
) -> Lowered:
    if not _is_single_or_double(factors):
        return DECLINED
    order_result, lower_result, upper_result = builder.results
    dtype, rows = factors.dtype, factors.shape[-2]
    zero, one = Constant(0, dtype), Constant(1, dtype)

    def order(at: Indices) -> Scalar:
        is_there = apply("eq", Load(permutation, (*at[:-2], at[-1])), IndexValue(at[-2], "i64"))
        return apply("where", is_there, one, zero)

    def lower(at: Indices) -> Scalar:
        off = apply("where", compare("gt", at[-2], at[-1]), Load(factors, at), zero)
        return apply("where", compare("eq", at[-2], at[-1]), one, off)

    def upper(at: Indices) -> Scalar:
        return apply("where", compare("le", at[-2], at[-1]), Load(factors, at), zero)

    def nothing(at: Indices) -> Scalar:
        return zero

    if unpack_pivots:
        _refuse_pivots(builder, pivots, rows, "LU_pivots passed to lu_unpack")
        with builder.part("order"):
            (permutation,) = builder.call("exchanged_rows", [pivots], [], [Result("i64", (*pivots.shape[:-1], rows))])
    return (
        builder.define(order if unpack_pivots else nothing, order_result),
        builder.define(lower if unpack_data else nothing, lower_result),
        builder.define(upper if unpack_data else nothing, upper_result),
    )


@lowering(aten.linalg_solve_triangular.default)
def solve_triangular(
    builder: Builder, matrix: Buffer, right: Buffer, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Lowered:
    if not _is_single_or_double(matrix, right):
        return DECLINED
    return builder.call("triangular_solve", [matrix, right], [int(upper), int(left), int(unitriangular)])[0]


@lowering(aten.geqrf.default)
def geqrf(builder: Builder, source: Buffer) -> Lowered:
    return builder.call("geqrf", [source]) if _is_single_or_double(source) else DECLINED


@lowering(aten.linalg_householder_product.default)
def householder_product(builder: Builder, reflections: Buffer, factors: Buffer) -> Lowered:
    if not _is_single_or_double(reflections, factors):
        return DECLINED
    return builder.call("householder_product", [reflections, factors])[0]


@lowering(aten.ormqr.default)
def ormqr(
    builder: Builder, reflections: Buffer, factors: Buffer, other: Buffer, left: bool = True, transpose: bool = False
) -> Lowered:
    if not _is_single_or_double(reflections, factors, other):
        return DECLINED
    return builder.call("ormqr", [reflections, factors, other], [int(left), int(transpose)])[0]


@lowering(aten.linalg_qr.default)
def qr(builder: Builder, source: Buffer, mode: str = "reduced") -> Lowered:
    if not _is_single_or_double(source):
        return DECLINED
    orthogonal, triangle = builder.results
    zero = Constant(0, source.dtype)
    diagonal = (*source.shape[:-2], minimum(source.shape[-2], source.shape[-1]))
    with builder.part("reflections"):
        results = [Result(source.dtype, source.shape), Result(source.dtype, diagonal)]
        packed, factors = builder.call("geqrf", [source], [], results)

    def upper(at: Indices) -> Scalar:
        is_inside = compare("le", at[-2], at[-1])
        # With more rows than columns, a full factor has rows beyond the packed one: none is above the diagonal.
        return apply("where", is_inside, Load(packed, at), zero)

    if mode == "r":
        first = builder.define(lambda at: zero, orthogonal)
    else:
        (first,) = builder.call("householder_product", [packed, factors], [], [orthogonal])
    return first, builder.define(upper, triangle)


@lowering(aten._linalg_eigh.default)
def eigh(builder: Builder, source: Buffer, uplo: str = "L", compute_v: bool = True) -> Lowered:
    if not _is_single_or_double(source):
        return DECLINED
    values, vectors = builder.results
    info = Result("i32", source.shape[:-2])
    wanted = [values, info, vectors] if compute_v else [values, info]
    found, failed, *sides = builder.call("eigh", [source], [int(uplo.upper() == "U"), int(compute_v)], wanted)
    _refuse_failures(builder, failed, "linalg.eigh", is_matrix=len(source.shape) == 2)
    return found, *(sides or [builder.define(lambda at: Constant(0, source.dtype), vectors)])


@lowering(aten._linalg_svd.default)
def svd(
    builder: Builder, source: Buffer, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Lowered:
    if not _is_single_or_double(source) or driver is not None:
        return DECLINED
    left, values, right = builder.results
    wanted = [values, Result("i32", source.shape[:-2]), *([left, right] if compute_uv else [])]
    found, failed, *sides = builder.call("svd", [source], [int(compute_uv)], wanted)
    _refuse_failures(builder, failed, "linalg.svd", is_matrix=len(source.shape) == 2)
    if not compute_uv:
        sides = [builder.define(lambda at: Constant(0, source.dtype), each) for each in (left, right)]
    return sides[0], found, sides[1]


@lowering(aten.linalg_lstsq.default)
def least_squares(
    builder: Builder, matrix: Buffer, right: Buffer, rcond: float | None = None, *, driver: str | None = None
) -> Lowered:
    if not _is_single_or_double(matrix, right):
        return DECLINED
    solution, residuals, rank, values = builder.results
    is_vector = len(solution.shape) == 1 or len(solution.shape) < max(len(matrix.shape), len(right.shape))
    dtype, (rows, columns) = matrix.dtype, matrix.shape[-2:]
    batch = solution.shape[: -1 if is_vector else -2]
    if batch != matrix.shape[:-2]:
        # Ranks and singular values are per matrix, but some matrices are broadcast.
        return DECLINED
    count = constant(1) if is_vector else solution.shape[-1]
    sides = right
    if is_vector:
        with builder.part("sides"):
            sides = builder.define(lambda at: Load(right, at[:-1]), Result(dtype, (*right.shape, constant(1))))
    room = Result(dtype, (*batch, maximum(rows, columns), count))
    results = [
        room, Result("i64", batch), Result(dtype, (*batch, minimum(rows, columns))), Result("i32", batch)
    ]  # fmt: skip
    way = driver or LEAST_SQUARES_DRIVERS[0]
    bits = -1 if rcond is None or rcond < 0 else struct.unpack("q", struct.pack("d", rcond))[0]
    with builder.part("found"):
        found, ranks, spectrum, info = builder.call(
            "least_squares", [matrix, sides], [LEAST_SQUARES_DRIVERS.index(way), bits], results
        )
    _refuse_failures(builder, info, "torch.linalg.lstsq", is_matrix=not batch)

    def rest(at: Indices) -> Scalar:
        value = Load(found, at)
        return apply("where", compare("ge", at[-2], columns), value * value, Constant(0, dtype))

    def copied(source: Buffer, result: Result) -> Buffer:
        if len(result.shape) != len(source.shape):
            return builder.define(lambda at: Constant(0, result.dtype), result)
        return builder.define(lambda at: Load(source, at), result)

    if len(residuals.shape) == len(batch) + 1 and way == "gels":
        lengths = builder.combine("sum", room.shape, (len(batch),), rest, result=residuals)
    else:
        lengths = builder.define(lambda at: Constant(0, dtype), residuals)
    return (
        builder.define(lambda at: Load(found, (*at, constant(0)) if is_vector else at), solution),
        lengths,
        copied(ranks, rank) if way != "gels" else builder.define(lambda at: Constant(0, "i64"), rank),
        copied(spectrum, values)
        if way in ("gelsd", "gelss")
        else builder.define(lambda at: Constant(0, dtype), values),
    )


@lowering(aten.linalg_matrix_exp.default)
def matrix_exp(builder: Builder, source: Buffer) -> Lowered:
    return builder.call("matrix_exp", [source])[0] if _is_single_or_double(source) else DECLINED
