"""Upsampling by nearest, linear and cubic interpolation, and its gradients, in one to three dimensions.

Each dimension says which inputs an output position takes, with which weights; a result is the sum over the products of
all dimensions' taps, and a gradient goes the same ways back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index, constant
from precast.ir.loops.program import Store
from precast.ir.loops.scalars import Constant, IndexValue, Load, Scalar, cast
from precast.lower.builder import Builder, Indices, Result, math_dtype
from precast.lower.byte_resampling import resample_bytes
from precast.lower.conditions import sure_place
from precast.lower.registry import Rule, lowering
from precast.lower.resampling_taps import Axis, Scale, Tap, Taps, cubic_taps, linear_taps, nearest_taps

aten = torch.ops.aten


TapsAt = Callable[[Index], list[Tap]]


def _combinations(taps: list[TapsAt], at: Indices) -> list[tuple[Indices, Scalar | None]]:
    """Every way to take one tap of each dimension, and the product of their weights."""
    each_axis = [taps_at(position) for taps_at, position in zip(taps, at, strict=True)]
    found: list[tuple[Indices, Scalar | None]] = []
    for chosen in product(*each_axis):
        weight: Scalar | None = None
        for tap in chosen:
            weight = tap.weight if weight is None else weight if tap.weight is None else weight * tap.weight
        found.append((tuple(tap.place for tap in chosen), weight))
    return found


def _axes(inputs: Indices, outputs: Indices, scales: Sequence[Scale], dtype: str) -> list[Axis]:
    count = len(scales)
    pairs = zip(inputs[len(inputs) - count :], outputs[len(outputs) - count :], strict=True)
    # Positions are computed in single precision unless the data is double, as eager does.
    compute = "f64" if dtype == "f64" else "f32"
    return [Axis(*pair, scale, compute) for pair, scale in zip(pairs, scales, strict=True)]


def _tabulated(builder: Builder, axes: list[Axis], taps: Taps) -> list[TapsAt]:
    """The taps of all positions of each dimension, computed once: for each pixel they cost more than the pixel."""
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


def resample(builder: Builder, source: Buffer, scales: Sequence[Scale], taps: Taps) -> Buffer:
    axes = _axes(source.shape, builder.result.shape, scales, source.dtype)
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
    return resample_bytes(builder, source, _axes(source.shape, builder.result.shape, scales, "f64"), taps)


def resample_backward(builder: Builder, gradient: Buffer, scales: Sequence[Scale], taps: Taps) -> Buffer:
    result = builder.result
    axes = _axes(result.shape, gradient.shape, scales, gradient.dtype)
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
        return resample(builder, source, _scales(scales, source), taps)

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
    """One for each dimension after batch and channels."""
    count = len(tensor.shape) - 2
    return [*given, *[None] * (count - len(given))]


def _register(name: str, rules: tuple[Rule, Rule]) -> None:
    forward, backward = rules
    lowering(getattr(aten, name).default)(forward)
    lowering(getattr(aten, f"{name}_backward").default)(backward)


@lowering(aten.upsample_nearest2d.vec)
def nearest_by_factors(builder: Builder, source: Buffer, size: object, factors: Sequence[float] | None) -> Buffer:
    scales = [None, None] if factors is None else list(factors)
    return resample(builder, source, scales, lambda axis, at: nearest_taps(axis, at, exact=False))


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
