"""Interpolation between bytes as eager does it: with fixed-point weights, one dimension after the other.

Before: ``upsample_bilinear2d(x, [9, 5])`` of bytes.
After, for columns and then for rows: the largest weight decides the factor 2^p that makes weights whole numbers of 16
bits; the sum of bytes times weights, divided by it, is rounded, cut to 0…255 and stored as a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Index
from precast.ir.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast
from precast.lower.builder import Builder, Indices, Result
from precast.lower.resampling_taps import Axis, Tap, Taps

_LARGEST_WEIGHT = 2**15
_MOST_BITS = 22


def resample_bytes(builder: Builder, source: Buffer, axes: Sequence[Axis], taps: Taps) -> Buffer:
    """Resample the last dimensions, of which each has an axis; one that keeps its size is left alone."""
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
    """The inputs of an output, each once: of those that meet at an edge, the first has the weight of all."""
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
    """The first power of two that would make the largest weight too large if it were doubled."""
    factor: Scalar = Constant(1, "f64")
    for bits in range(1, _MOST_BITS + 1):
        fits = apply("lt", largest * 2.0**bits + 0.5, Constant(_LARGEST_WEIGHT, "f64"))
        factor = apply("where", fits, Constant(2.0**bits, "f64"), factor)
    return factor


def _rounded(value: Scalar) -> Scalar:
    return apply("trunc", value + apply("copysign", Constant(0.5, "f64"), value))
