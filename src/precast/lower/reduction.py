"""Operators that combine elements along dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, constant, product
from precast.ir.loops.scalars import IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.lower.builder import Builder, Indices, Result, broadcast_indices, is_floating, math_dtype
from precast.lower.registry import Rule, lowering

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def reduced_dims(source: Buffer, dims: Dims) -> tuple[int, ...]:
    """Dimension numbers from 0; none given means all."""
    rank = len(source.shape)
    given = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(sorted(dim % rank for dim in given)) if rank else ()


def sum_dtype(dtype: str) -> str:
    """The type to add up in: double for floats, so that long sums lose nothing; 64 bits for integers, as eager."""
    return "f64" if is_floating(dtype) else "i64"


def kept_result(source: Buffer, dims: tuple[int, ...], dtype: str) -> Result:
    """A reduction of `source` that keeps its rank, row-major: the intermediate of a longer computation."""
    shape = tuple(constant(1) if dim in dims else size for dim, size in enumerate(source.shape))
    return Result(dtype, shape)


def element_count(source: Buffer, dims: tuple[int, ...]) -> Index:
    return product(source.shape[dim] for dim in dims)


def exactly(value: Scalar) -> Scalar:
    """A term of a mean, to be added up in double precision all the way.

    In single precision the mean of equal numbers is not quite that number, and the inverse spread of what is left, some
    300 by `eps` alone, makes a visible difference of it.
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
    """Variance and mean, in two passes: a large mean takes no digits away from the squares of what is left.

    In double precision, as eager: squares of small numbers are there, and the mean of equal ones is that number.
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
