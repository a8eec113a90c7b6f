"""Pooling as reductions over windows, and its gradients as reductions over the windows that contain an element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, as_index, constant, floor_divide, maximum, minimum, product, remainder
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, is_floating, math_dtype
from precast.native.rules.conditions import all_of, compare, is_within, place
from precast.native.rules.registry import lowering
from precast.native.rules.scatter import neutral, scatter_into

aten = torch.ops.aten

Sizes = Sequence[Index | int]


@dataclass(frozen=True)
class Window:
    """One dimension of a pool: output `o` covers inputs from ``start(o)`` up to ``end(o)``, every `step`-th.

    `taps` is the maximal number of inputs in a window; `holders` the maximal number of windows that contain an input.
    """

    inputs: Index
    outputs: Index
    taps: Index
    holders: Index
    start: Callable[[Index], Index]
    end: Callable[[Index], Index]
    first_holder: Callable[[Index], Index]
    step: Index


def fixed_window(inputs: Index, outputs: Index, size: Index, stride: Index, padding: Index, step: Index) -> Window:
    """Windows of one size, adjacent or overlapping."""
    reach = (size - 1) * step + 1
    return Window(
        inputs,
        outputs,
        _at_most(size, floor_divide(inputs + padding - 1, step) + 1),
        _at_most(floor_divide(reach - 1, stride) + 1, outputs),
        lambda o: o * stride - padding,
        lambda o: o * stride - padding + reach,
        # The first window that ends after this input.
        lambda i: maximum(floor_divide(i + padding - reach + stride, stride), constant(0)),
        step,
    )


def _at_most(count: Index, bound: Index) -> Index:
    """The smaller of two constants; a window may be larger than the image."""
    are_known = count.constant is not None and bound.constant is not None
    return minimum(count, bound) if are_known else count


def adaptive_window(inputs: Index, outputs: Index) -> Window:
    """Windows of about equal size that cover everything."""
    is_even = inputs.constant is not None and outputs.constant and inputs.constant % outputs.constant == 0
    taps = floor_divide(inputs, outputs) if is_even else floor_divide(inputs + outputs - 1, outputs) + 1
    return Window(
        inputs,
        outputs,
        taps,
        floor_divide(outputs + inputs - 1, inputs) + 1,
        lambda o: floor_divide(o * inputs, outputs),
        lambda o: floor_divide((o + 1) * inputs + outputs - 1, outputs),
        lambda i: floor_divide(i * outputs, inputs),
        constant(1),
    )


def _sizes(values: Sizes, count: int) -> list[Index]:
    return [as_index(each) for each in (values if len(values) == count else [values[0]] * count)]


def fixed_windows(
    source: Indices, result: Indices, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = (1,)
) -> list[Window]:
    count = len(kernel)
    numbers = (kernel, stride or kernel, padding, dilation)
    geometry = zip(*(_sizes(each, count) for each in numbers), strict=True)
    sizes = zip(source[len(source) - count :], result[len(result) - count :], strict=True)
    return [fixed_window(*size, *each) for size, each in zip(sizes, geometry, strict=True)]


def adaptive_windows(source: Indices, result: Indices, count: int) -> list[Window]:
    return [adaptive_window(*size) for size in zip(source[-count:], result[-count:], strict=True)]


def tap_places(windows: list[Window], at: Indices) -> tuple[Indices, Scalar]:
    """The input subscripts of tap ``at[-n:]`` of output ``at[-2n:-n]``, and whether they are inside."""
    count = len(windows)
    leading, outputs, taps = at[: len(at) - 2 * count], at[len(at) - 2 * count : len(at) - count], at[len(at) - count :]
    found = tuple(window.start(o) + tap * window.step for window, o, tap in zip(windows, outputs, taps, strict=True))
    conditions = [is_within(position, window.inputs) for window, position in zip(windows, found, strict=True)]
    # Fixed-size windows have all of their taps; adaptive ones may have one less.
    for window, position, o in zip(windows, found, outputs, strict=True):
        if window.step.constant == 1 and not _is_exact(window):
            conditions.append(compare("lt", position, window.end(o)))
    return (*leading, *found), all_of(*conditions)


def nearest_tap_places(windows: list[Window], at: Indices) -> tuple[Indices, Scalar | None]:
    """As `tap_places`, but taps outside are clamped to the nearest inside, if that belongs to the same window.

    It does for a window without gaps, which always overlaps the input. Repeated taps do not change a maximum, and loops
    without conditions are fast.
    """
    where, is_inside = tap_places(windows, at)
    if any(window.step.constant != 1 or not _is_exact(window) for window in windows):
        return where, is_inside
    start = len(where) - len(windows)
    pairs = zip(windows, where[start:], strict=True)
    return (*where[:start], *(minimum(maximum(place, constant(0)), each.inputs - 1) for each, place in pairs)), None


def _is_exact(window: Window) -> bool:
    zero = constant(0)
    return window.end(zero) - window.start(zero) == window.taps


def holder_places(windows: list[Window], at: Indices) -> tuple[Indices, Scalar]:
    """The ``at[-n:]``-th window that may contain input ``at[-2n:-n]``, and whether it does."""
    count = len(windows)
    leading, inputs, turns = at[: len(at) - 2 * count], at[len(at) - 2 * count : len(at) - count], at[len(at) - count :]
    outputs = tuple(window.first_holder(i) + turn for window, i, turn in zip(windows, inputs, turns, strict=True))
    conditions: list[Scalar] = []
    for window, i, o in zip(windows, inputs, outputs, strict=True):
        conditions += [
            compare("lt", o, window.outputs),
            compare("le", window.start(o), i),
            compare("lt", i, window.end(o)),
        ]
    return (*leading, *outputs), all_of(*conditions)


def _dims(shape: Indices, count: int) -> tuple[int, ...]:
    return tuple(range(len(shape), len(shape) + count))


def max_pool(builder: Builder, source: Buffer, windows: list[Window]) -> tuple[Buffer, Buffer]:
    """The maximum of each window, and its position in the plane: the first of equal numbers, but the last NaN."""
    values_result, places_result = builder.results
    dtype = math_dtype(source.dtype)
    lowest = as_scalar(neutral("max", dtype), dtype)
    shape, dims = (*values_result.shape, *(window.taps for window in windows)), _dims(values_result.shape, len(windows))

    def value_of(at: Indices) -> Scalar:
        where, is_inside = nearest_tap_places(windows, at)
        value = cast(Load(source, where, is_inside), dtype)
        return value if is_inside is None else apply("where", is_inside, value, lowest)

    values = builder.combine("max", shape, dims, value_of, result=values_result)
    none = Constant(torch.iinfo(torch.int64).max, "i64")

    def place_of(at: Indices) -> Scalar:
        where, is_inside = nearest_tap_places(windows, at)
        value, peak = Load(source, where, is_inside), Load(values, at[: len(at) - len(windows)])
        flat = constant(0)
        for window, position in zip(windows, where[len(where) - len(windows) :], strict=True):
            flat = flat * window.inputs + position
        number: Scalar = IndexValue(flat, "i64")
        is_peak = apply("eq", value, peak)
        if is_floating(source.dtype):
            is_nan = apply("is_nan", cast(value, dtype))
            # Below zero, the least number is that of the last NaN.
            number, is_peak = apply("where", is_nan, -1 - number, number), apply("logical_or", is_peak, is_nan)
        is_found = is_peak if is_inside is None else all_of(is_inside, is_peak)
        return apply("where", is_found, number, none)

    def decoded(number: Scalar) -> Scalar:
        return apply("maximum", number, -1 - number) if is_floating(source.dtype) else number

    with builder.part("places"):
        places = builder.combine("min", shape, dims, place_of, finish=decoded, result=places_result)
    return values, places


@lowering(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_with_indices(
    builder: Builder, source: Buffer, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
    dilation: Sizes = (1,), ceil_mode: bool = False,
) -> tuple[Buffer, Buffer]:  # fmt: skip
    kernel = _sizes(kernel_size, _rank_of(builder))
    shape = builder.results[0].shape
    return max_pool(builder, source, fixed_windows(source.shape, shape, kernel, stride or kernel, padding, dilation))


def _rank_of(builder: Builder) -> int:
    """The number of pooled dimensions, from the operator's name."""
    return next(count for count in (1, 2, 3) if f"pool{count}d" in builder.origin)


@lowering(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(builder: Builder, source: Buffer, output_size: Sizes) -> tuple[Buffer, Buffer]:
    windows = adaptive_windows(source.shape, builder.results[0].shape, _rank_of(builder))
    return max_pool(builder, source, windows)


def _max_pool_backward(builder: Builder, gradient: Buffer, source: Buffer, places: Buffer) -> Buffer:
    count = _rank_of(builder)
    planes = source.shape[len(source.shape) - count :]

    def target(at: Indices) -> tuple[Indices, Scalar]:
        where = place("place", Load(places, at), product(planes))
        positions, rest = [], where.index
        for size in reversed(planes[1:]):
            positions.append(remainder(rest, size))
            rest = floor_divide(rest, size)
        return (*at[: len(at) - count], rest, *reversed(positions)), where.is_inside

    def value(at: Indices) -> Scalar:
        return cast(Load(gradient, at), wide.dtype)

    wide = Result(math_dtype(builder.result.dtype), builder.result.shape)
    total = scatter_into(builder, 0, gradient.shape, target, value, combine="sum", result=wide)
    return total if wide.dtype == builder.result.dtype else builder.pointwise(lambda sum_: sum_, total)


@lowering(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(
    builder: Builder, gradient: Buffer, source: Buffer, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    dilation: Sizes, ceil_mode: bool, places: Buffer,
) -> Buffer:  # fmt: skip
    return _max_pool_backward(builder, gradient, source, places)


@lowering(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(builder: Builder, gradient: Buffer, source: Buffer, places: Buffer) -> Buffer:
    return _max_pool_backward(builder, gradient, source, places)


def _divisor(windows: list[Window], outputs: Indices, padding: Sequence[Index], *, counts_padding: bool) -> Scalar:
    """The number of elements in each window; padding counts on request, positions beyond it never."""
    total = constant(1)
    for window, o, pad in zip(windows, outputs, padding, strict=True):
        end = minimum(window.end(o), window.inputs + pad)
        size = end - window.start(o)
        if not counts_padding:
            size = minimum(end, window.inputs) - maximum(window.start(o), constant(0))
        total = total * size
    return IndexValue(total, "f64")


def _average(builder: Builder, source: Buffer, windows: list[Window], divisor: Callable[[Indices], Scalar]) -> Buffer:
    result, count = builder.result, len(windows)
    shape = (*result.shape, *(window.taps for window in windows))
    accumulate = "f64" if is_floating(source.dtype) else "i64"

    def value(at: Indices) -> Scalar:
        where, is_inside = tap_places(windows, at)
        return cast(Load(source, where, is_inside), accumulate)

    total = builder.combine("sum", shape, _dims(result.shape, count), value, result=Result(accumulate, result.shape),
                            accumulate=accumulate)  # fmt: skip
    operation = "div" if is_floating(source.dtype) else "div_trunc"
    return builder.define(
        lambda at: apply(operation, Load(total, at), cast(divisor(at[len(at) - count :]), accumulate)))  # fmt: skip


def _average_backward(
    builder: Builder, gradient: Buffer, windows: list[Window], divisor: Callable[[Indices], Scalar]
) -> Buffer:
    result, count = builder.result, len(windows)
    shape = (*result.shape, *(window.holders for window in windows))

    def value(at: Indices) -> Scalar:
        where, is_inside = holder_places(windows, at)
        share = cast(Load(gradient, where, is_inside), "f64") / divisor(where[len(where) - count :])
        return apply("where", is_inside, share, as_scalar(0, "f64"))

    return builder.combine("sum", shape, _dims(result.shape, count), value, accumulate="f64")


@lowering(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def average_pool(
    builder: Builder, source: Buffer, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Buffer:  # fmt: skip
    count = _rank_of(builder)
    kernel, pads = _sizes(kernel_size, count), _sizes(padding, count)
    windows = fixed_windows(source.shape, builder.result.shape, kernel, stride or kernel, pads)

    def divisor(outputs: Indices) -> Scalar:
        if divisor_override is not None:
            return Constant(divisor_override, "f64")
        return _divisor(windows, outputs, pads, counts_padding=count_include_pad)

    return _average(builder, source, windows, divisor)


@lowering(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def average_pool_backward(
    builder: Builder, gradient: Buffer, source: Buffer, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Buffer:  # fmt: skip
    count = _rank_of(builder)
    kernel, pads = _sizes(kernel_size, count), _sizes(padding, count)
    windows = fixed_windows(source.shape, gradient.shape, kernel, stride or kernel, pads)

    def divisor(outputs: Indices) -> Scalar:
        if divisor_override is not None:
            return Constant(divisor_override, "f64")
        return _divisor(windows, outputs, pads, counts_padding=count_include_pad)

    return _average_backward(builder, gradient, windows, divisor)


@lowering(aten.adaptive_avg_pool1d.default, aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average_pool(builder: Builder, source: Buffer, output_size: Sizes) -> Buffer:
    windows = adaptive_windows(source.shape, builder.result.shape, _rank_of(builder))
    none = [constant(0)] * len(windows)
    return _average(builder, source, windows, lambda at: _divisor(windows, at, none, counts_padding=True))


@lowering(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_pool_backward(builder: Builder, gradient: Buffer, source: Buffer) -> Buffer:
    windows = adaptive_windows(source.shape, gradient.shape, _rank_of(builder))
    none = [constant(0)] * len(windows)
    return _average_backward(builder, gradient, windows, lambda at: _divisor(windows, at, none, counts_padding=True))
