"""Upsampling by nearest, linear and cubic interpolation, and its gradients, in one to three dimensions.

For each dimension, taps say which inputs an output position reads, with which weights; a result is the sum over the
products of all dimensions' taps, and a gradient is scattered through the same taps.

uint8 images are interpolated as in eager: with fixed-point weights, one dimension after the other.

Before: ``upsample_bilinear2d(x, [9, 5])`` of bytes.
After, for columns and then for rows: the largest weight determines the factor 2^p that scales weights to 16-bit
integers; the weighted sum of bytes is divided by it, rounded, clamped to 0…255 and stored as a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import torch

from precast.native.loops.buffers import Buffer, channels_last_strides
from precast.native.loops.index import Index, constant, floor_divide
from precast.native.loops.program import Store
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, math_dtype
from precast.native.rules.conditions import all_of, compare, sure_place
from precast.native.rules.registry import Rule, lowering

Scale = float | None
_CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """One input that an output reads, and its weight; None is 1."""

    place: Index
    weight: Scalar | None


@dataclass(frozen=True)
class Axis:
    """One dimension: its sizes, and the step in the input per output position."""

    inputs: Index
    outputs: Index
    scale: Scale
    dtype: str
    ignores_scale: Scalar | None
    """Whether a size that stays (or doubles, of nearest neighbours) counts, not the scale factor; None: never."""

    def ratio(self, *, align_corners: bool = False) -> Scalar:
        if align_corners:
            if self.outputs.constant == 1:
                return Constant(0, self.dtype)
            return self.number(self.inputs - 1) / self.number(self.outputs - 1)
        if self.scale is not None and self.scale > 0:
            return Constant(1 / self.scale, self.dtype)
        return self.number(self.inputs) / self.number(self.outputs)

    def number(self, index: Index) -> Scalar:
        return IndexValue(index, self.dtype)

    def clamped(self, position: Scalar) -> Scalar:
        last = IndexValue(self.inputs - 1, "i64")
        return apply("minimum", apply("maximum", position, Constant(0, "i64")), last)

    def unscaled(self, at: Index, position: Scalar, *multiples: int) -> Scalar:
        """`position`, but for sizes that are one of these multiples of the input's: as if that were the factor."""
        if self.scale is None or self.ignores_scale is None:
            return position
        for each in multiples:
            is_multiple = all_of(self.ignores_scale, compare("eq", self.inputs * each, self.outputs))
            whole = cast(IndexValue(floor_divide(at, each), "i64"), position.dtype)
            position = apply("where", is_multiple, whole, position)
        return position

    def place(self, position: Scalar) -> Index:
        return sure_place("position", self.clamped(position), self.inputs)


def nearest_taps(axis: Axis, at: Index, *, exact: bool) -> list[Tap]:
    center = axis.number(at) + 0.5 if exact else axis.number(at)
    place = cast(apply("floor", center * axis.ratio()), "i64")
    return [Tap(axis.place(place if exact else axis.unscaled(at, place, 1, 2)), None)]


def _source_position(axis: Axis, at: Index, *, align_corners: bool) -> Scalar:
    ratio = axis.ratio(align_corners=align_corners)
    return axis.number(at) * ratio if align_corners else ratio * (axis.number(at) + 0.5) - 0.5


def linear_taps(axis: Axis, at: Index, *, align_corners: bool) -> list[Tap]:
    source = axis.unscaled(at, _source_position(axis, at, align_corners=align_corners), 1)
    position = apply("maximum", source, as_scalar(0, axis.dtype))
    first = axis.clamped(cast(apply("floor", position), "i64"))
    above = position - cast(first, axis.dtype)
    above = apply("minimum", apply("maximum", above, as_scalar(0, axis.dtype)), as_scalar(1, axis.dtype))
    return [Tap(axis.place(first), 1.0 - above), Tap(axis.place(first + 1), above)]


def cubic_taps(axis: Axis, at: Index, *, align_corners: bool) -> list[Tap]:
    position = _source_position(axis, at, align_corners=align_corners)
    whole = apply("floor", position)
    first, t = cast(whole, "i64"), position - whole
    weights = [_outer_cubic(t + 1.0), _inner_cubic(t), _inner_cubic(1.0 - t), _outer_cubic(2.0 - t)]
    return [Tap(axis.place(first + number), weight) for number, weight in zip(range(-1, 3), weights, strict=True)]


def _inner_cubic(x: Scalar) -> Scalar:
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1.0


def _outer_cubic(x: Scalar) -> Scalar:
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


Taps = Callable[[Axis, Index], list[Tap]]


_LARGEST_WEIGHT = 2**15
_MOST_BITS = 22


def resample_bytes(builder: Builder, source: Buffer, axes: Sequence[Axis], taps: Taps) -> Buffer:
    """Resample the last dimensions, one axis each; a dimension that keeps its size is skipped."""
    leading, done = len(source.shape) - len(axes), source
    changed = [place for place, axis in enumerate(axes) if axis.inputs != axis.outputs]
    if not changed:
        return builder.view(source, lambda at: at)
    for place in reversed(changed):
        dim, is_last = leading + place, place == changed[0]
        shape = (*done.shape[:dim], axes[place].outputs, *done.shape[dim + 1 :])
        done = _resample_axis(builder, done, dim, axes[place], taps, builder.result if is_last else Result("u8", shape))
    return done


def _resample_axis(builder: Builder, source: Buffer, dim: int, axis: Axis, taps: Taps, result: Result) -> Buffer:
    def largest_weight(at: Indices) -> Scalar:
        return reduce(
            lambda one, other: apply("maximum", one, other), [weight for _, weight in _weights(axis, at[0], taps)]
        )

    with builder.part("factor"):
        single = Result("f64", ())
        factor = builder.combine("max", (axis.outputs,), (0,), largest_weight, finish=_factor, result=single)

    def formula(at: Indices) -> Scalar:
        scale: Scalar = Load(factor, ())
        total = scale * 0.5
        for place, weight in _weights(axis, at[dim], taps):
            value = cast(Load(source, (*at[:dim], place, *at[dim + 1 :])), "f64")
            total = total + value * _rounded(weight * scale)
        highest = apply("minimum", apply("floor", total / scale), Constant(255, "f64"))
        return apply("maximum", highest, Constant(0, "f64"))

    return builder.define(formula, result)


def _weights(axis: Axis, at: Index, taps: Taps) -> list[tuple[Index, Scalar]]:
    """The inputs of an output, each once: taps clamped to the same edge element are merged into the first."""
    found = taps(axis, at)
    return [(tap.place, _share(tap, found[:number], found)) for number, tap in enumerate(found)]


def _share(tap: Tap, before: Sequence[Tap], found: Sequence[Tap]) -> Scalar:
    none = Constant(0, "f64")
    total: Scalar = none
    for other in found:
        assert other.weight is not None
        total = total + (other.weight if other is tap else apply("where", _meet(tap, other), other.weight, none))
    for other in before:
        total = apply("where", _meet(tap, other), none, total)
    return total


def _meet(one: Tap, other: Tap) -> Scalar:
    return apply("eq", IndexValue(one.place, "i64"), IndexValue(other.place, "i64"))


def _factor(largest: Scalar) -> Scalar:
    """The largest power of two with which the largest weight still fits."""
    factor: Scalar = Constant(1, "f64")
    for bits in range(1, _MOST_BITS + 1):
        fits = apply("lt", largest * 2.0**bits + 0.5, Constant(_LARGEST_WEIGHT, "f64"))
        factor = apply("where", fits, Constant(2.0**bits, "f64"), factor)
    return factor


def _rounded(value: Scalar) -> Scalar:
    return apply("trunc", value + apply("copysign", Constant(0.5, "f64"), value))


aten = torch.ops.aten


TapsAt = Callable[[Index], list[Tap]]


def _combinations(taps: list[TapsAt], at: Indices) -> list[tuple[Indices, Scalar | None]]:
    """Every combination of one tap per dimension, and the product of their weights."""
    each_axis = [taps_at(position) for taps_at, position in zip(taps, at, strict=True)]
    found: list[tuple[Indices, Scalar | None]] = []
    for chosen in product(*each_axis):
        weight: Scalar | None = None
        for tap in chosen:
            weight = tap.weight if weight is None else weight if tap.weight is None else weight * tap.weight
        found.append((tuple(tap.place for tap in chosen), weight))
    return found


_SMALL = 128


_ALWAYS = Constant(True, "bool")


def _ignores_scale(source: Buffer, outputs: Indices) -> Scalar | None:
    """Whether eager's forward runs the kernel for nearest neighbours that does: for small or channels-last images."""
    channels, *sizes = source.shape[1:]
    if len(sizes) == 1:
        return None
    has_channels = channels.constant is not None and channels.constant > 3
    if has_channels and source.strides == channels_last_strides(source.shape):
        return _ALWAYS
    return compare("le", sum(outputs[2:], constant(0)), _SMALL)


def _axes(
    builder: Builder,
    inputs: Indices,
    outputs: Indices,
    scales: Sequence[Scale],
    dtype: str,
    ignores_scale: Scalar | None = _ALWAYS,
) -> list[Axis]:
    count = len(scales)
    pairs = zip(inputs[len(inputs) - count :], outputs[len(outputs) - count :], strict=True)
    # Positions are computed in single precision unless the data is double, as in eager.
    compute = "f64" if dtype == "f64" else "f32"
    ignores = ignores_scale if builder.follows_cpu else None
    return [Axis(*pair, scale, compute, ignores) for pair, scale in zip(pairs, scales, strict=True)]


def _tabulated(builder: Builder, axes: list[Axis], taps: Taps) -> list[TapsAt]:
    """The taps of all positions of each dimension, precomputed: they cost more than the interpolation of a pixel."""
    tables = {axis: _tables(builder, axis, taps) for axis in dict.fromkeys(axes)}
    return [tables[axis] for axis in axes]


def _tables(builder: Builder, axis: Axis, taps: Taps) -> TapsAt:

    def table(dtype: str, value_of: Callable[[Tap], Scalar], number: int) -> Buffer:
        return builder.define(lambda at: value_of(taps(axis, at[0])[number]), Result(dtype, (axis.outputs,)))

    with builder.part("taps"):
        tables = [
            (
                table("i64", lambda tap: IndexValue(tap.place, "i64"), number),
                None if tap.weight is None else table(axis.dtype, _weight, number),
            )
            for number, tap in enumerate(taps(axis, constant(0)))
        ]
    return lambda at: [
        Tap(sure_place("position", Load(place, (at,)), axis.inputs), Load(weight, (at,)) if weight else None)
        for place, weight in tables
    ]


def _weight(tap: Tap) -> Scalar:
    assert tap.weight is not None
    return tap.weight


def resample(
    builder: Builder, source: Buffer, scales: Sequence[Scale], taps: Taps, ignores_scale: Scalar | None = _ALWAYS
) -> Buffer:
    axes = _axes(builder, source.shape, builder.result.shape, scales, source.dtype, ignores_scale)
    dtype, leading = math_dtype(source.dtype), len(source.shape) - len(axes)
    tables = _tabulated(builder, axes, taps)

    def formula(at: Indices) -> Scalar:
        total: Scalar | None = None
        for place, weight in _combinations(tables, at[leading:]):
            value: Scalar = Load(source, (*at[:leading], *place))
            value = value if weight is None else cast(value, dtype) * cast(weight, dtype)
            total = value if total is None else total + value
        assert total is not None
        return total

    return builder.define(formula)


def interpolate(builder: Builder, source: Buffer, scales: Sequence[Scale], taps: Taps) -> Buffer:
    if source.dtype != "u8":
        return resample(builder, source, scales, taps)
    return resample_bytes(builder, source, _axes(builder, source.shape, builder.result.shape, scales, "f64"), taps)


def resample_backward(builder: Builder, gradient: Buffer, scales: Sequence[Scale], taps: Taps) -> Buffer:
    result = builder.result
    axes = _axes(builder, result.shape, gradient.shape, scales, gradient.dtype)
    dtype, leading = math_dtype(gradient.dtype), len(gradient.shape) - len(axes)
    wide = Result(dtype, result.shape, result.strides)
    tables = _tabulated(builder, axes, taps)

    def stores(target: Buffer, at: Indices) -> list[Store]:
        dy = cast(Load(gradient, at), dtype)
        return [
            Store(target, (*at[:leading], *place), dy if weight is None else dy * cast(weight, dtype), None, "sum")
            for place, weight in _combinations(tables, at[leading:])
        ]

    total = builder.scatter(lambda at: Constant(0, dtype), [(gradient.shape, stores)], wide)
    return total if dtype == result.dtype else builder.define(lambda at: cast(Load(total, at), result.dtype))


def _nearest_rules(*, exact: bool) -> tuple[Rule, Rule]:
    def taps(axis: Axis, at: Index) -> list[Tap]:
        return nearest_taps(axis, at, exact=exact)

    def forward(builder: Builder, source: Buffer, size: object, *scales: Scale) -> Buffer:
        ignores_scale = _ignores_scale(source, builder.result.shape)
        return resample(builder, source, _scales(scales, source), taps, ignores_scale)

    def backward(builder: Builder, gradient: Buffer, size: object, input_size: object, *scales: Scale) -> Buffer:
        return resample_backward(builder, gradient, _scales(scales, gradient), taps)

    return forward, backward


def _interpolation_rules(kind: Callable[..., list[Tap]]) -> tuple[Rule, Rule]:
    def taps_for(align_corners: bool) -> Taps:
        return lambda axis, at: kind(axis, at, align_corners=align_corners)

    def forward(builder: Builder, source: Buffer, size: object, align_corners: bool, *scales: Scale) -> Buffer:
        return interpolate(builder, source, _scales(scales, source), taps_for(align_corners))

    def backward(
        builder: Builder, gradient: Buffer, size: object, input_size: object, align_corners: bool, *scales: Scale
    ) -> Buffer:
        return resample_backward(builder, gradient, _scales(scales, gradient), taps_for(align_corners))

    return forward, backward


def _scales(given: Sequence[Scale], tensor: Buffer) -> list[Scale]:
    """One for each spatial dimension."""
    count = len(tensor.shape) - 2
    return [*given, *[None] * (count - len(given))]


def _register(name: str, rules: tuple[Rule, Rule]) -> None:
    forward, backward = rules
    lowering(getattr(aten, name).default)(forward)
    lowering(getattr(aten, f"{name}_backward").default)(backward)


@lowering(aten.upsample_nearest2d.vec)
def nearest_by_factors(builder: Builder, source: Buffer, size: object, factors: Sequence[float] | None) -> Buffer:
    scales = [None, None] if factors is None else list(factors)
    ignores_scale = _ignores_scale(source, builder.result.shape)
    return resample(builder, source, scales, lambda axis, at: nearest_taps(axis, at, exact=False), ignores_scale)


@lowering(aten.upsample_bilinear2d.vec)
def bilinear_by_factors(
    builder: Builder, source: Buffer, size: object, align_corners: bool, factors: Sequence[float] | None
) -> Buffer:
    scales = [None, None] if factors is None else list(factors)
    return interpolate(builder, source, scales, lambda axis, at: linear_taps(axis, at, align_corners=align_corners))


for _dimensions in (1, 2, 3):
    _register(f"upsample_nearest{_dimensions}d", _nearest_rules(exact=False))
    _register(f"_upsample_nearest_exact{_dimensions}d", _nearest_rules(exact=True))
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _register(_name, _interpolation_rules(linear_taps))
_register("upsample_bicubic2d", _interpolation_rules(cubic_taps))
