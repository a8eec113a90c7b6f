"""Reductions: operators that combine elements along dimensions.

Softmax and its relatives are reductions and formulas over rows, which fuse into one pass over each row.

Also norms of vectors, and distances between rows of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, product
from precast.native.loops.scalars import IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, broadcast_indices, is_floating, math_dtype
from precast.native.rules.conditions import sure_place
from precast.native.rules.registry import DECLINED, Lowered, Rule, lowering

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def reduced_dims(source: Buffer, dims: Dims) -> tuple[int, ...]:
    """Dimension numbers from 0; none given means all."""
    rank = len(source.shape)
    given = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(sorted(dim % rank for dim in given)) if rank else ()


def sum_dtype(dtype: str) -> str:
    """The accumulator type: double for floats, so that long sums stay precise; 64 bits for integers, as in eager."""
    return "f64" if is_floating(dtype) else "i64"


def kept_result(source: Buffer, dims: tuple[int, ...], dtype: str) -> Result:
    """A reduction of `source` that keeps its rank, row-major: an intermediate result."""
    shape = tuple(constant(1) if dim in dims else size for dim, size in enumerate(source.shape))
    return Result(dtype, shape)


def element_count(source: Buffer, dims: tuple[int, ...]) -> Index:
    return product(source.shape[dim] for dim in dims)


def exactly(value: Scalar) -> Scalar:
    """A term of a mean that must be accumulated in double precision throughout.

    In single precision the mean of equal numbers differs slightly from that number, and multiplying the difference by
    the inverse deviation, about 300 from `eps` alone, makes the error visible.
    """
    return cast(value, "f64", is_asked=True)


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False, **_: object) -> Buffer:
    return builder.reduce("sum", source, reduced_dims(source, dim), accumulate=sum_dtype(builder.result.dtype))


@lowering(aten.mean.default, aten.mean.dim)
def mean(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False, **_: object) -> Buffer:
    return _mean(builder, source, reduced_dims(source, dim), builder.result)


def _mean(
    builder: Builder,
    source: Buffer,
    dims: tuple[int, ...],
    result: Result,
    term: Callable[[Scalar], Scalar] = lambda x: x,
) -> Buffer:
    count = IndexValue(element_count(source, dims), "f64")
    return builder.reduce(
        "sum", source, dims, accumulate="f64", prepare=lambda value, _: term(value), finish=lambda total: total / count,
        result=result)  # fmt: skip


def _extreme_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: Dims = (), keepdim: bool = False) -> Buffer:
        return builder.reduce(kind, source, reduced_dims(source, dim))

    rule.__name__ = f"a{kind}"
    return rule


lowering(aten.amax.default, aten.max.default)(_extreme_rule("max"))
lowering(aten.amin.default, aten.min.default)(_extreme_rule("min"))


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False, **_: object) -> Buffer:
    return builder.reduce("prod", source, reduced_dims(source, dim), accumulate=math_dtype(builder.result.dtype))


def _truth_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False) -> Buffer:
        dims = reduced_dims(source, dim)
        return builder.reduce(kind, source, dims, prepare=lambda value, at: cast(value, "bool"))

    rule.__name__ = kind
    return rule


lowering(aten.any.default, aten.any.dim, aten.any.dims)(_truth_rule("any"))
lowering(aten.all.default, aten.all.dim, aten.all.dims)(_truth_rule("all"))


def variance(
    builder: Builder,
    source: Buffer,
    dims: tuple[int, ...],
    correction: float | None,
    result: Result,
    finish: Callable[[Scalar], Scalar] = lambda value: value,
) -> tuple[Buffer, Buffer]:
    """Variance and mean, in two passes, so that a large mean costs the squared deviations no digits.

    In double precision, as in eager: squares of small numbers do not underflow, and the mean of equal numbers is exact.
    """
    center = _mean(builder, source, dims, kept_result(source, dims, "f64"), exactly)

    def squared_distance(value: Scalar, at: Indices) -> Scalar:
        distance = exactly(value) - Load(center, broadcast_indices(center.shape, at))
        return distance * distance

    def divide(total: Scalar) -> Scalar:
        degrees = IndexValue(element_count(source, dims), "f64") - (1 if correction is None else correction)
        return finish(total / apply("maximum", degrees, as_scalar(0, "f64")))

    spread = builder.reduce(
        "sum", source, dims, accumulate="f64", prepare=squared_distance, finish=divide, result=result
    )
    return spread, center


@lowering(aten.var.correction)
def var(
    builder: Builder, source: Buffer, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Buffer:
    return variance(builder, source, reduced_dims(source, dim), correction, builder.result)[0]


@lowering(aten.std.correction)
def std(
    builder: Builder, source: Buffer, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Buffer:
    def root(value: Scalar) -> Scalar:
        return apply("sqrt", value)

    return variance(builder, source, reduced_dims(source, dim), correction, builder.result, root)[0]


@lowering(aten.var.dim)
def var_of_dims(builder: Builder, source: Buffer, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Buffer:
    return var(builder, source, dim, correction=int(unbiased))


@lowering(aten.var_mean.correction)
def var_mean(
    builder: Builder, source: Buffer, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Buffer, Buffer]:
    spread, mean_result = builder.results
    dims = reduced_dims(source, dim)
    found, center = variance(builder, source, dims, correction, spread)
    kept = tuple(each for each in range(len(source.shape)) if each not in dims)

    def place(at: Indices) -> Indices:
        if len(at) == len(center.shape):
            return at
        places = dict(zip(kept, at, strict=True))
        return tuple(places.get(each, constant(0)) for each in range(len(source.shape)))

    return found, builder.define(lambda at: cast(Load(center, place(at)), mean_result.dtype), mean_result)


def _row_sum(builder: Builder, source: Buffer, dims: tuple[int, ...], dtype: str) -> Buffer:
    return builder.reduce("sum", source, dims, accumulate="f64", result=kept_result(source, dims, dtype))


@lowering(aten._softmax.default)
def softmax(builder: Builder, source: Buffer, dim: int, half_to_float: bool) -> Lowered:
    if not is_floating(source.dtype):
        # Eager accepts integers where the input is empty.
        return DECLINED
    dims, dtype = reduced_dims(source, dim), math_dtype(source.dtype)
    peak = builder.reduce("max", source, dims, result=kept_result(source, dims, dtype))
    powers_result = Result(dtype, source.shape)
    powers = builder.pointwise(lambda x, top: apply("exp", x - top), source, peak, result=powers_result)
    return builder.pointwise(lambda power, total: power / total, powers, _row_sum(builder, powers, dims, dtype))


@lowering(aten._log_softmax.default)
def log_softmax(builder: Builder, source: Buffer, dim: int, half_to_float: bool) -> Lowered:
    if not is_floating(source.dtype):
        # Eager accepts integers where the input is empty.
        return DECLINED
    dims, dtype = reduced_dims(source, dim), math_dtype(source.dtype)
    peak = builder.reduce("max", source, dims, result=kept_result(source, dims, dtype))

    def power(value: Scalar, at: Indices) -> Scalar:
        return apply("exp", value - Load(peak, broadcast_indices(peak.shape, at)))

    total = builder.reduce(
        "sum", source, dims, prepare=power, accumulate="f64", result=kept_result(source, dims, dtype)
    )
    return builder.pointwise(lambda x, top, sum_: (x - top) - apply("log", sum_), source, peak, total)


@lowering(aten._softmax_backward_data.default)
def softmax_backward(builder: Builder, gradient: Buffer, result: Buffer, dim: int, input_dtype: torch.dtype) -> Buffer:
    dims, dtype = reduced_dims(result, dim), math_dtype(result.dtype)
    products = builder.pointwise(lambda dy, y: dy * y, gradient, result, result=Result(dtype, result.shape))
    total = _row_sum(builder, products, dims, dtype)
    return builder.pointwise(lambda product, y, sum_: product - y * sum_, products, result, total)


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    builder: Builder, gradient: Buffer, result: Buffer, dim: int, input_dtype: torch.dtype
) -> Buffer:
    total = _row_sum(builder, gradient, reduced_dims(result, dim), math_dtype(result.dtype))
    return builder.pointwise(lambda dy, y, sum_: dy - apply("exp", y) * sum_, gradient, result, total)


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
        # Pair number k is (i, j), i < j, in row-major order.
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
