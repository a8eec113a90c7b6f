"""Operators that combine elements along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

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


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False, **_: object) -> Buffer:
    return builder.reduce("sum", source, reduced_dims(source, dim), accumulate=sum_dtype(builder.result.dtype))


@lowering(aten.mean.default, aten.mean.dim)
def mean(builder: Builder, source: Buffer, dim: Dims = None, keepdim: bool = False, **_: object) -> Buffer:
    return _mean(builder, source, reduced_dims(source, dim), builder.result)


def _mean(builder: Builder, source: Buffer, dims: tuple[int, ...], result: Result) -> Buffer:
    count = IndexValue(element_count(source, dims), "f64")
    return builder.reduce("sum", source, dims, accumulate="f64", finish=lambda total: total / count, result=result)


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


@lowering(aten.var.correction)
def var(
    builder: Builder, source: Buffer, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Buffer:
    dims = reduced_dims(source, dim)
    # In two passes: the mean first, then the squares of what is left, so that a large mean takes no digits away.
    center = _mean(builder, source, dims, kept_result(source, dims, math_dtype(source.dtype)))

    def squared_distance(value: Scalar, at: Indices) -> Scalar:
        distance = value - Load(center, broadcast_indices(center.shape, at))
        return distance * distance

    def divide(total: Scalar) -> Scalar:
        degrees = IndexValue(element_count(source, dims), "f64") - (1 if correction is None else correction)
        return total / apply("maximum", degrees, as_scalar(0, "f64"))

    return builder.reduce("sum", source, dims, accumulate="f64", prepare=squared_distance, finish=divide)
