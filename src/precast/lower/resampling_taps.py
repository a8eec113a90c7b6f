"""Which inputs an output position takes when a dimension is resampled, and with which weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precast.ir.loops.index import Index
from precast.ir.loops.scalars import Constant, IndexValue, Scalar, apply, as_scalar, cast
from precast.lower.conditions import sure_place

Scale = float | None
_CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """One input that an output takes, and its weight; None is 1."""

    place: Index
    weight: Scalar | None


@dataclass(frozen=True)
class Axis:
    """One dimension: its sizes, and how much an output position moves in the input."""

    inputs: Index
    outputs: Index
    scale: Scale
    dtype: str

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

    def place(self, position: Scalar) -> Index:
        return sure_place("position", self.clamped(position), self.inputs)


def nearest_taps(axis: Axis, at: Index, *, exact: bool) -> list[Tap]:
    center = axis.number(at) + 0.5 if exact else axis.number(at)
    return [Tap(axis.place(cast(apply("floor", center * axis.ratio()), "i64")), None)]


def _source_position(axis: Axis, at: Index, *, align_corners: bool) -> Scalar:
    ratio = axis.ratio(align_corners=align_corners)
    return axis.number(at) * ratio if align_corners else ratio * (axis.number(at) + 0.5) - 0.5


def linear_taps(axis: Axis, at: Index, *, align_corners: bool) -> list[Tap]:
    position = apply("maximum", _source_position(axis, at, align_corners=align_corners), as_scalar(0, axis.dtype))
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
