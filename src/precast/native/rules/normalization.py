"""Layer and batch normalization and their gradients: statistics as reductions, the rest as one formula.

Both are the same up to which elements share a mean: a row, or a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, product
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast
from precast.native.rules.builder import Builder, Indices, Result, math_dtype
from precast.native.rules.reduction import exactly
from precast.native.rules.registry import DECLINED, Lowered, lowering

aten = torch.ops.aten

Normalized = tuple[Buffer, Buffer, Buffer]
Gradients = tuple[Buffer | None, Buffer | None, Buffer | None]


@dataclass(frozen=True)
class Grouping:
    """Which elements of an input share a mean, and which share a weight.

    `shape` is the input's. Elements along `shared` dims share a mean; `statistic` and `parameter` map subscripts to
    those of the mean and of the weight. `parameter_shared` are the dims along which a weight is shared.
    """

    shape: Indices
    shared: tuple[int, ...]
    statistic: Callable[[Indices], Indices]
    parameter: Callable[[Indices], Indices]
    parameter_shared: tuple[int, ...]

    @property
    def count(self) -> Index:
        return product(self.shape[dim] for dim in self.shared)


def row_grouping(source: Buffer, rank: int) -> Grouping:
    """Layer norm: the last `rank` dims share a mean."""
    start = len(source.shape) - rank
    return Grouping(
        source.shape,
        tuple(range(start, len(source.shape))),
        lambda at: (*at[:start], *[constant(0)] * rank),
        lambda at: at[start:],
        tuple(range(start)),
    )


def channel_grouping(source: Buffer) -> Grouping:
    """Batch norm: all elements of a channel share a mean."""
    others = tuple(dim for dim in range(len(source.shape)) if dim != 1)
    return Grouping(source.shape, others, lambda at: (at[1],), lambda at: (at[1],), others)


def _value(buffer: Buffer, at: Indices, dtype: str) -> Scalar:
    return cast(Load(buffer, at), dtype)


def average(total: Scalar, count: Index, dtype: str) -> Scalar:
    """A double-precision sum divided by its count, for a result of type `dtype`.

    For a narrower result, multiplying by the reciprocal is precise enough, and much faster where loops recompute it.
    """
    number = IndexValue(count, "f64")
    return total / number if dtype == "f64" else total * (1.0 / number)


def statistics(
    builder: Builder, source: Buffer, group: Grouping, shape: Indices, spread: Callable[[Scalar], Scalar]
) -> tuple[Buffer, Buffer]:
    """The mean, and `spread` of the variance, of each group of elements that share them."""
    dtype = math_dtype(source.dtype)
    result = Result(dtype, shape)

    def mean_of(total: Scalar) -> Scalar:
        return average(total, group.count, dtype)

    def value(at: Indices) -> Scalar:
        return _value(source, at, dtype)

    with builder.part("mean"):
        mean = builder.combine("sum", group.shape, group.shared, lambda at: exactly(value(at)),
                               finish=mean_of, result=result)  # fmt: skip

    def squared_distance(at: Indices) -> Scalar:
        distance = value(at) - Load(mean, group.statistic(at))
        return distance * distance

    with builder.part("spread"):
        spreads = builder.combine("sum", group.shape, group.shared, squared_distance, accumulate="f64",
                                  finish=lambda total: spread(mean_of(total)), result=result)  # fmt: skip
    return mean, spreads


def inverse_root(eps: float) -> Callable[[Scalar], Scalar]:
    return lambda variance: apply("rsqrt", variance + eps)


def normalize(
    builder: Builder,
    source: Buffer,
    scale_at: Callable[[Indices], tuple[Scalar, Scalar]],
    weight: Buffer | None,
    bias: Buffer | None,
    parameter: Callable[[Indices], Indices],
) -> Buffer:
    """``(x - mean) * rstd * weight + bias``, with mean and rstd from `scale_at`."""
    dtype = math_dtype(source.dtype)

    def formula(at: Indices) -> Scalar:
        mean, rstd = scale_at(at)
        value = (_value(source, at, dtype) - mean) * rstd
        value = value if weight is None else value * _value(weight, parameter(at), dtype)
        return value if bias is None else value + _value(bias, parameter(at), dtype)

    return builder.define(formula, builder.results[0])


def as_result(builder: Builder, buffer: Buffer, result: Result) -> Buffer:
    """`buffer` converted to the node's result; unchanged if it already matches."""
    if buffer.dtype == result.dtype and buffer.shape == result.shape:
        return buffer
    return builder.define(lambda at: cast(Load(buffer, at), result.dtype), result)


@lowering(aten.native_layer_norm.default)
def layer_norm(
    builder: Builder, source: Buffer, shape: Sequence[Index | int], weight: Buffer | None, bias: Buffer | None,
    eps: float,
) -> Normalized:  # fmt: skip
    group, results = row_grouping(source, len(shape)), builder.results
    mean, rstd = statistics(builder, source, group, results[1].shape, inverse_root(eps))

    def scale_at(at: Indices) -> tuple[Scalar, Scalar]:
        return Load(mean, group.statistic(at)), Load(rstd, group.statistic(at))

    output = normalize(builder, source, scale_at, weight, bias, group.parameter)
    return output, as_result(builder, mean, results[1]), as_result(builder, rstd, results[2])


def _requested(results: tuple[Result, ...], mask: Sequence[bool]) -> tuple[Result, ...]:
    """The results that are requested; some operators have traced values for the others too."""
    return results if len(results) == sum(mask) else tuple(compress(results, mask))


def gradients(
    builder: Builder,
    gradient: Buffer,
    source: Buffer,
    group: Grouping,
    scale_at: Callable[[Indices], tuple[Scalar, Scalar]],
    weight: Buffer | None,
    mask: Sequence[bool],
    *,
    depends: bool = True,
) -> Gradients:
    """Of input, weight and bias, as `mask` requests; without `depends`, mean and spread do not depend on the input."""
    dtype = math_dtype(source.dtype)
    results = iter(_requested(builder.results, mask))
    count = IndexValue(group.count, dtype)
    kept = tuple(size for dim, size in enumerate(group.shape) if dim not in group.shared)

    def normalized(at: Indices) -> Scalar:
        mean, rstd = scale_at(at)
        return (_value(source, at, dtype) - mean) * rstd

    def slope(at: Indices) -> Scalar:
        dy = _value(gradient, at, dtype)
        return dy if weight is None else dy * _value(weight, group.parameter(at), dtype)

    def mean_of(name: str, formula: Callable[[Indices], Scalar]) -> Buffer:
        with builder.part(name):
            return builder.combine(
                "sum", group.shape, group.shared, formula, result=Result(dtype, kept), accumulate="f64"
            )

    def total_of(formula: Callable[[Indices], Scalar]) -> Buffer:
        shape, dims = source.shape, group.parameter_shared
        return builder.combine("sum", shape, dims, formula,
                               result=next(results), accumulate="f64")  # fmt: skip

    def defined(formula: Callable[[Indices], Scalar]) -> Buffer:
        return builder.define(formula, next(results))

    def kept_at(at: Indices) -> Indices:
        return tuple(position for dim, position in enumerate(at) if dim not in group.shared)

    def input_gradient() -> Buffer:
        if not depends:
            return defined(lambda at: slope(at) * scale_at(at)[1])
        plain = mean_of("slope", slope)
        along = mean_of("along", lambda at: slope(at) * normalized(at))

        def formula(at: Indices) -> Scalar:
            pulled = Load(plain, kept_at(at)) + normalized(at) * Load(along, kept_at(at))
            return (slope(at) - pulled / count) * scale_at(at)[1]

        return defined(formula)

    wanted_input, wanted_weight, wanted_bias = mask
    return (
        input_gradient() if wanted_input else None,
        total_of(lambda at: _value(gradient, at, dtype) * normalized(at)) if wanted_weight else None,
        total_of(lambda at: _value(gradient, at, dtype)) if wanted_bias else None,
    )


@lowering(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    builder: Builder, gradient: Buffer, source: Buffer, shape: Sequence[Index | int], mean: Buffer, rstd: Buffer,
    weight: Buffer | None, bias: Buffer | None, mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    group, dtype = row_grouping(source, len(shape)), math_dtype(source.dtype)

    def scale_at(at: Indices) -> tuple[Scalar, Scalar]:
        return _value(mean, group.statistic(at), dtype), _value(rstd, group.statistic(at), dtype)

    return gradients(builder, gradient, source, group, scale_at, weight, mask)


def _batch_norm(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, eps: float
) -> tuple[Buffer, Buffer, Buffer, Buffer]:
    """Output, mean, inverse deviation and variance of this batch."""
    group = channel_grouping(source)
    mean, variance = statistics(builder, source, group, (source.shape[1],), lambda variance: variance)
    with builder.part("rstd"):
        rstd = builder.pointwise(inverse_root(eps), variance, result=Result(variance.dtype, variance.shape))
    output = normalize(
        builder, source, lambda at: (Load(mean, (at[1],)), Load(rstd, (at[1],))), weight, bias, group.parameter
    )
    return output, mean, rstd, variance


def _frozen_batch_norm(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, mean: Buffer, variance: Buffer,
    eps: float,
) -> Buffer:  # fmt: skip
    dtype = math_dtype(source.dtype)

    def scale_at(at: Indices) -> tuple[Scalar, Scalar]:
        return _value(mean, (at[1],), dtype), inverse_root(eps)(_value(variance, (at[1],), dtype))

    return normalize(builder, source, scale_at, weight, bias, lambda at: (at[1],))


def _empty(builder: Builder, results: Sequence[Result]) -> tuple[Buffer, ...]:
    return tuple(builder.define(lambda at: Constant(0, "f32"), result) for result in results)


def _copy(builder: Builder, source: Buffer, result: Result) -> Buffer:
    return builder.define(lambda at: Load(source, at), result)


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, mean: Buffer, variance: Buffer,
    momentum: float, eps: float,
) -> Lowered:  # fmt: skip
    output = _frozen_batch_norm(builder, source, weight, bias, mean, variance, eps)
    return output, *_empty(builder, builder.results[1:])


@lowering(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, training: bool, momentum: float,
    eps: float,
) -> Lowered:  # fmt: skip
    output, mean, rstd, _ = _batch_norm(builder, source, weight, bias, eps)
    return output, as_result(builder, mean, builder.results[1]), as_result(builder, rstd, builder.results[2])


@lowering(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, running_mean: Buffer,
    running_variance: Buffer, training: bool, momentum: float, eps: float,
) -> Lowered:  # fmt: skip
    results = builder.results
    if not training:
        output = _frozen_batch_norm(builder, source, weight, bias, running_mean, running_variance, eps)
        kept = [_copy(builder, *pair) for pair in zip((running_mean, running_variance), results[3:], strict=True)]
        return output, *_empty(builder, results[1:3]), *kept
    output, mean, rstd, variance = _batch_norm(builder, source, weight, bias, eps)
    count = IndexValue(channel_grouping(source).count, "f64")

    def blended(old: Scalar, new: Scalar) -> Scalar:
        return old * (1 - momentum) + new * momentum

    def unbiased(old: Scalar, new: Scalar) -> Scalar:
        return blended(old, new * cast(count / (count - 1.0), new.dtype))

    kept_mean = builder.pointwise(blended, running_mean, mean, result=results[3])
    kept_variance = builder.pointwise(unbiased, running_variance, variance, result=results[4])
    saved = as_result(builder, mean, results[1]), as_result(builder, rstd, results[2])
    return output, *saved, kept_mean, kept_variance


@lowering(aten._native_batch_norm_legit.default, aten.native_batch_norm.default)
def batch_norm(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, running_mean: Buffer | None,
    running_variance: Buffer | None, training: bool, momentum: float, eps: float,
) -> Lowered:  # fmt: skip
    if running_mean is None or running_variance is None:
        return batch_norm_without_statistics(builder, source, weight, bias, training, momentum, eps)
    if training:
        # It updates the running statistics in place: functional graphs have the functional variant.
        return DECLINED
    output = _frozen_batch_norm(builder, source, weight, bias, running_mean, running_variance, eps)
    return output, *_empty(builder, builder.results[1:])


@lowering(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    builder: Builder, gradient: Buffer, source: Buffer, weight: Buffer | None, running_mean: Buffer | None,
    running_variance: Buffer | None, mean: Buffer | None, rstd: Buffer | None, training: bool, eps: float,
    mask: Sequence[bool],
) -> Lowered:  # fmt: skip
    group, dtype = channel_grouping(source), math_dtype(source.dtype)

    def scale_at(at: Indices) -> tuple[Scalar, Scalar]:
        place = group.statistic(at)
        if training:
            assert mean is not None
            assert rstd is not None
            return _value(mean, place, dtype), _value(rstd, place, dtype)
        assert running_mean is not None
        assert running_variance is not None
        return _value(running_mean, place, dtype), inverse_root(eps)(_value(running_variance, place, dtype))

    return gradients(builder, gradient, source, group, scale_at, weight, mask, depends=training)
