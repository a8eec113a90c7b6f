"""Norms of vectors, and distances between rows of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.scalars import IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.lower.builder import Builder, Indices, broadcast_indices, math_dtype
from precast.lower.conditions import sure_place
from precast.lower.reduction import reduced_dims
from precast.lower.registry import lowering

aten = torch.ops.aten


def _term(difference: Scalar, p: float) -> Scalar:
    size = apply("abs", difference)
    if p == 0:
        return cast(apply("ne", size, as_scalar(0, size.dtype)), size.dtype)
    if p == 2:
        return difference * difference
    return size if p == 1 or math.isinf(p) else apply("pow", size, as_scalar(p, size.dtype))


def _finish(total: Scalar, p: float) -> Scalar:
    if p in (0, 1) or math.isinf(p):
        return total
    return apply("sqrt", total) if p == 2 else apply("pow", total, as_scalar(1 / p, total.dtype))


@lowering(aten.linalg_vector_norm.default)
def vector_norm(
    builder: Builder, source: Buffer, ord: float = 2, dim: Sequence[int] | int | None = None, *_: object, **__: object
) -> Buffer:
    kind = "min" if ord == -math.inf else "max" if ord == math.inf else "sum"
    accumulate = math_dtype(builder.result.dtype) if kind != "sum" else "f64"
    dims = reduced_dims(source, dim)
    if kind != "sum" and any(source.shape[each].constant == 0 for each in dims):
        return builder.define(lambda at: as_scalar(0 if kind == "max" else math.inf, builder.result.dtype))
    return builder.reduce(
        kind,
        source,
        dims,
        prepare=lambda value, at: _term(cast(value, accumulate), ord),
        finish=lambda total: _finish(total, ord),
        accumulate=accumulate,
    )


@lowering(aten._cdist_forward.default)
def cdist(builder: Builder, left: Buffer, right: Buffer, p: float, compute_mode: int | None) -> Buffer:
    shape, dtype = (*builder.result.shape, left.shape[-1]), math_dtype(left.dtype)

    def term(at: Indices) -> Scalar:
        mine = Load(left, broadcast_indices(left.shape, (*at[:-3], at[-3], at[-1])))
        other = Load(right, broadcast_indices(right.shape, (*at[:-3], at[-2], at[-1])))
        return _term(cast(mine, dtype) - cast(other, dtype), p)

    return _combined(builder, shape, term, p)


@lowering(aten._pdist_forward.default)
def pdist(builder: Builder, source: Buffer, p: float = 2.0) -> Buffer:
    rows, dtype = source.shape[0], math_dtype(source.dtype)
    shape = (*builder.result.shape, source.shape[1])

    def term(at: Indices) -> Scalar:
        # Pair number k is (i, j), i < j, counted row by row.
        number, half = IndexValue(at[0], "f64"), IndexValue(rows * 2 - 1, "f64") * 0.5
        first = cast(half - apply("sqrt", half * half - number * 2.0 - 1.0), "i64")
        before = first * IndexValue(rows, "i64") - apply("div_floor", first * (first + 1), as_scalar(2, "i64"))
        second = IndexValue(at[0], "i64") - before + first + 1
        places = (sure_place("first", first, rows), sure_place("second", second, rows))
        values = [cast(Load(source, (place, at[1])), dtype) for place in places]
        return _term(values[0] - values[1], p)

    return _combined(builder, shape, term, p)


def _combined(builder: Builder, shape: Indices, term: Callable[[Indices], Scalar], p: float) -> Buffer:
    kind = "max" if math.isinf(p) else "sum"
    accumulate = math_dtype(builder.result.dtype) if kind == "max" else "f64"
    if shape[-1].constant == 0 and kind == "max":
        return builder.define(lambda at: as_scalar(0, builder.result.dtype))
    return builder.combine(
        kind, shape, (len(shape) - 1,), lambda at: cast(term(at), accumulate), finish=lambda total: _finish(total, p),
        accumulate=accumulate,
    )  # fmt: skip
