"""Group normalization and its gradient: sums over each channel, then over the channels of each group.

In either memory format, a sum over one channel is strided uniformly; a sum over a group is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, floor_divide, product
from precast.native.loops.scalars import IndexValue, Load, Scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, math_dtype
from precast.native.rules.normalization import Gradients, Normalized, as_result, average, inverse_root
from precast.native.rules.reduction import exactly
from precast.native.rules.registry import lowering

aten = torch.ops.aten

Formula = Callable[[Indices], Scalar]


@dataclass(frozen=True)
class Channels:
    """The channels of an image, in `groups` groups."""

    builder: Builder
    image: Buffer
    groups: int

    @property
    def dtype(self) -> str:
        return math_dtype(self.image.dtype)

    @property
    def size(self) -> Index:
        """The number of channels in a group."""
        return floor_divide(self.image.shape[1], self.groups)

    @property
    def positions(self) -> Index:
        return product(self.image.shape[2:])

    def group_of(self, at: Indices) -> Indices:
        return at[0], floor_divide(at[1], self.size)

    def value(self, buffer: Buffer, at: Indices) -> Scalar:
        return cast(Load(buffer, at), self.dtype)

    def of_channel(
        self, name: str, formula: Formula, finish: Callable[[Scalar], Scalar] = lambda total: total
    ) -> Buffer:
        """The sum of ``formula(at)`` over all positions of each channel."""
        image = self.image.shape
        if len(image) == 2:
            return self.each(name, lambda at: finish(formula(at)))
        with self.builder.part(name):
            result = Result(self.dtype, image[:2])
            dims = tuple(range(2, len(image)))
            return self.builder.combine("sum", image, dims, formula, finish=finish, result=result, accumulate="f64")

    def of_group(self, name: str, formula: Formula, finish: Callable[[Scalar], Scalar] = lambda total: total) -> Buffer:
        """The sum of ``formula((n, c))`` over the channels of each group."""
        shape = (self.image.shape[0], constant(self.groups), self.size)

        def member(at: Indices) -> Scalar:
            return formula((at[0], at[1] * self.size + at[2]))

        with self.builder.part(name):
            result = Result(self.dtype, shape[:2])
            return self.builder.combine("sum", shape, (2,), member, finish=finish, result=result, accumulate="f64")

    def each(self, name: str, formula: Formula) -> Buffer:
        """``formula((n, c))`` for each channel."""
        with self.builder.part(name):
            return self.builder.define(formula, Result(self.dtype, self.image.shape[:2]))


@lowering(aten.native_group_norm.default)
def group_norm(
    builder: Builder, source: Buffer, weight: Buffer | None, bias: Buffer | None, batch: object, channels: object,
    positions: object, groups: int, eps: float,
) -> Normalized:  # fmt: skip
    parts, results = Channels(builder, source, groups), builder.results
    dtype, value = parts.dtype, parts.value
    count, members = IndexValue(parts.positions, dtype), IndexValue(parts.size, "f64")
    means = parts.of_channel(
        "means", lambda at: exactly(value(source, at)), lambda total: average(total, parts.positions, dtype)
    )

    def squared_distance(at: Indices) -> Scalar:
        distance = value(source, at) - Load(means, at[:2])
        return distance * distance

    squares = parts.of_channel("squares", squared_distance)
    mean = parts.of_group("mean", lambda at: Load(means, at), lambda total: total / members)

    def spread(at: Indices) -> Scalar:
        # Moments about the group's mean: those about the channel's mean, shifted by the distance between the means.
        distance = Load(means, at) - Load(mean, parts.group_of(at))
        return Load(squares, at) / count + distance * distance

    rstd = parts.of_group("rstd", spread, lambda total: inverse_root(eps)(total / members))

    def scale_of(at: Indices) -> Scalar:
        scale = Load(rstd, parts.group_of(at))
        return scale if weight is None else scale * value(weight, (at[1],))

    def shift_of(at: Indices) -> Scalar:
        shift = (Load(means, at) - Load(mean, parts.group_of(at))) * scale_of(at)
        return shift if bias is None else shift + value(bias, (at[1],))

    scale, shift = parts.each("scale", scale_of), parts.each("shift", shift_of)

    def normalized(at: Indices) -> Scalar:
        # The mean is subtracted first: after scaling, cancellation would cost digits.
        return (value(source, at) - Load(means, at[:2])) * Load(scale, at[:2]) + Load(shift, at[:2])

    output = builder.define(normalized, results[0])
    return output, as_result(builder, mean, results[1]), as_result(builder, rstd, results[2])


@lowering(aten.native_group_norm_backward.default)
def group_norm_backward(
    builder: Builder, gradient: Buffer, source: Buffer, mean: Buffer, rstd: Buffer, weight: Buffer | None,
    batch: object, channels: object, positions: object, groups: int, mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    parts, results = Channels(builder, source, groups), iter(builder.results)
    value = parts.value
    slopes = parts.of_channel("slopes", lambda at: value(gradient, at))
    products = parts.of_channel("products", lambda at: value(gradient, at) * value(source, at))

    def weighted(at: Indices, number: Scalar) -> Scalar:
        return number if weight is None else number * value(weight, (at[1],))

    def along(at: Indices) -> Scalar:
        """The sum of the gradient times the normalized input, over one channel."""
        place = parts.group_of(at)
        return (Load(products, at) - Load(slopes, at) * value(mean, place)) * value(rstd, place)

    def input_gradient() -> Buffer:
        count = IndexValue(parts.positions * parts.size, parts.dtype)
        plain = parts.of_group("plain", lambda at: weighted(at, Load(slopes, at)))
        pulled = parts.of_group("pulled", lambda at: weighted(at, along(at)))

        def curve_of(at: Indices) -> Scalar:
            place = parts.group_of(at)
            return -Load(pulled, place) * value(rstd, place) * value(rstd, place) / count

        def shift_of(at: Indices) -> Scalar:
            place = parts.group_of(at)
            return -Load(plain, place) * value(rstd, place) / count - value(mean, place) * Load(curve, at)

        scale = parts.each("scale", lambda at: weighted(at, value(rstd, parts.group_of(at))))
        curve = parts.each("curve", curve_of)
        shift = parts.each("shift", shift_of)
        return builder.define(
            lambda at: (
                value(gradient, at) * Load(scale, at[:2])
                + value(source, at) * Load(curve, at[:2])
                + Load(shift, at[:2])
            ),
            next(results),
        )

    def over_batch(formula: Formula) -> Buffer:
        shape = source.shape[:2]
        return builder.combine("sum", shape, (0,), formula, result=next(results), accumulate="f64")

    wanted_input, wanted_weight, wanted_bias = mask
    return (
        input_gradient() if wanted_input else None,
        over_batch(along) if wanted_weight else None,
        over_batch(lambda at: Load(slopes, at)) if wanted_bias else None,
    )
