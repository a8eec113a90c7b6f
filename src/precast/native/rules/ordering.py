"""Operators that search or sort: argmax, sort, topk, median, searchsorted, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, as_index, constant, floor_divide, product
from precast.native.loops.program import Check
from precast.native.loops.routines import SCAN_KINDS
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast
from precast.native.rules.builder import (
    Builder,
    Indices,
    Operand,
    Result,
    broadcast_indices,
    element,
    is_floating,
    math_dtype,
    promoted_dtype,
)
from precast.native.rules.conditions import all_of, check_bounds, place, sure_place
from precast.native.rules.reduction import kept_result, reduced_dims
from precast.native.rules.registry import Rule, lowering
from precast.native.rules.view import reshaped_indices

aten = torch.ops.aten

_NOWHERE = torch.iinfo(torch.int64).max


def _first_place(builder: Builder, source: Buffer, dims: tuple[int, ...], kind: str, result: Result) -> Buffer:
    """The row-major position along `dims` of the first extreme element; NaN is more extreme than any number."""
    dtype = math_dtype(source.dtype)
    with builder.part("peak"):
        peak = builder.reduce(kind, source, dims, result=kept_result(source, dims, dtype))

    def place_of(value: Scalar, at: Indices) -> Scalar:
        is_peak = apply("eq", value, Load(peak, broadcast_indices(peak.shape, at)))
        if is_floating(dtype):
            is_peak = apply("logical_or", is_peak, apply("is_nan", value))
        flat = IndexValue(_flat(source.shape, at, dims), "i64")
        return apply("where", is_peak, flat, Constant(_NOWHERE, "i64"))

    return builder.reduce("min", source, dims, prepare=place_of, result=result)


def _flat(shape: Indices, at: Indices, dims: tuple[int, ...]) -> Index:
    flat = Index(())
    for dim in dims:
        flat = flat * shape[dim] + at[dim]
    return flat


def _place_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: int | None = None, keepdim: bool = False) -> Buffer:
        return _first_place(builder, source, reduced_dims(source, dim), kind, builder.result)

    rule.__name__ = f"arg{kind}"
    return rule


def _extreme_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: int, keepdim: bool = False) -> tuple[Buffer, Buffer]:
        dims = reduced_dims(source, dim)
        values, places = builder.results
        found = builder.reduce(kind, source, dims, result=values)
        return found, _first_place(builder, source, dims, kind, places)

    rule.__name__ = f"{kind}_along"
    return rule


lowering(aten.argmax.default)(_place_rule("max"))
lowering(aten.argmin.default)(_place_rule("min"))
lowering(aten.max.dim)(_extreme_rule("max"))
lowering(aten.min.dim)(_extreme_rule("min"))


@lowering(aten.sort.default)
def sort(builder: Builder, source: Buffer, dim: int = -1, descending: bool = False) -> tuple[Buffer, ...]:
    return builder.call("sort", [source], [dim % max(len(source.shape), 1), int(descending)])


@lowering(aten.sort.stable)
def stable_sort(
    builder: Builder, source: Buffer, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Buffer, ...]:
    return sort(builder, source, dim, descending)


@lowering(aten.topk.default)
def topk(
    builder: Builder, source: Buffer, k: int | Index, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Buffer, ...]:
    return builder.call("sort", [source], [dim % max(len(source.shape), 1), int(largest)])


def _converted(builder: Builder, source: Buffer, dtype: str) -> Buffer:
    with builder.part("cast"):
        return builder.define(lambda at: cast(Load(source, at), dtype), Result(dtype, source.shape))


def running(builder: Builder, source: Buffer, dim: int, kind: str) -> tuple[Buffer, ...]:
    """A cumulative reduction of `kind` along `dim`, in the type of the result."""
    dtype = builder.results[0].dtype
    if source.dtype != dtype:
        source = _converted(builder, source, dtype)
    return builder.call("scan", [source], [dim % max(len(source.shape), 1), SCAN_KINDS.index(kind)])


def _running_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: int, **_: object) -> Buffer:
        return running(builder, source, dim, kind)[0]

    rule.__name__ = f"running_{kind}"
    return rule


def _running_extreme_rule(kind: str) -> Rule:
    def rule(builder: Builder, source: Buffer, dim: int) -> tuple[Buffer, ...]:
        return running(builder, source, dim, kind)

    rule.__name__ = f"running_{kind}"
    return rule


lowering(aten.cumsum.default)(_running_rule("sum"))
lowering(aten.cumprod.default)(_running_rule("prod"))
lowering(aten.logcumsumexp.default)(_running_rule("logsumexp"))
lowering(aten.cummax.default)(_running_extreme_rule("max"))
lowering(aten.cummin.default)(_running_extreme_rule("min"))


@lowering(aten.masked_scatter.default)
def masked_scatter(builder: Builder, source: Buffer, mask: Buffer, values: Buffer) -> Buffer:
    """Masked elements are replaced by `values` in order: each by the one numbered by the masked elements before it."""
    shape = builder.result.shape
    total = product(shape)

    def is_chosen_at(at: Indices) -> Scalar:
        return cast(Load(mask, broadcast_indices(mask.shape, at)), "bool")

    with builder.part("chosen"):
        flat = builder.define(
            lambda at: cast(is_chosen_at(reshaped_indices(shape, (total,), at)), "i64"), Result("i64", (total,))
        )
        (counts,) = builder.call("scan", [flat], [0, SCAN_KINDS.index("sum")], [Result("i64", (total,))])
        room = product(values.shape)
        failed = builder.reduce(
            "any", counts, (0,), prepare=lambda count, at: apply("gt", count, IndexValue(room, "i64")),
            result=Result("bool", ()),
        )  # fmt: skip
    message = "masked_scatter: expected self and source to have same number of elements as the mask chooses"
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))

    def formula(at: Indices) -> Scalar:
        is_chosen = is_chosen_at(at)
        count = Load(counts, reshaped_indices((total,), shape, at))
        where = place("turn", count - 1, room)
        chosen = Load(
            values, reshaped_indices(values.shape, (room,), (where.index,)), all_of(is_chosen, where.is_inside)
        )
        return apply("where", is_chosen, chosen, element(source, at, source.dtype))

    return builder.define(formula)


def _searched(
    builder: Builder, ordered: Buffer, values: Operand, is_right: bool, order: Buffer | None = None
) -> Buffer:
    """For each value, the number of elements of the sorted line before it."""
    shape = builder.result.shape
    flat = shape or (constant(1),)
    if order is not None:
        message = "torch.searchsorted(): sorter index out of range"
        check_bounds(builder, order, ordered.shape[-1], error="value", message=message)
    dtype, lines = promoted_dtype([ordered, values]), ordered
    asked = builder.define(lambda at: element(values, at[: len(shape)], dtype), Result(dtype, flat))
    if dtype != ordered.dtype:
        with builder.part("lines"):
            lines = builder.define(lambda at: element(ordered, at, dtype), Result(dtype, ordered.shape))
    with builder.part("places"):
        operands = [lines, asked, *([] if order is None else [order])]
        (places,) = builder.call("search", operands, [int(is_right), int(order is not None)], [Result("i64", flat)])
    return builder.define(lambda at: Load(places, at if shape else (constant(0),)))


@lowering(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    builder: Builder, ordered: Buffer, values: Operand, *, right: bool = False, side: str | None = None,
    sorter: Buffer | None = None, **_: object,
) -> Buffer:  # fmt: skip
    return _searched(builder, ordered, values, right or side == "right", sorter)


@lowering(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(builder: Builder, values: Operand, boundaries: Buffer, *, right: bool = False, **_: object) -> Buffer:
    return _searched(builder, boundaries, values, right)


def _picked(
    builder: Builder, source: Buffer, dim: int, position: Callable[[Indices], Scalar], results: Sequence[Result]
) -> tuple[Buffer, ...]:
    """For each sorted line, the element at `position`, which may depend on the other dimensions, and its index."""
    dim = dim % max(len(source.shape), 1)
    keeps_rank = len(results[0].shape) == len(source.shape)
    wide = [Result(source.dtype, source.shape), Result("i64", source.shape)]
    with builder.part("sorted"):
        columns = builder.call("sort", [source], [dim, 0], wide)

    def pick(column: Buffer, at: Indices) -> Scalar:
        if not source.shape:
            return Load(column, ())
        others = (*at[:dim], *at[dim + 1 :]) if keeps_rank else at
        where = sure_place("position", position(others), source.shape[dim])
        return Load(column, (*others[:dim], where, *others[dim:]))

    return tuple(
        builder.define(partial(pick, column), result) for column, result in zip(columns, results, strict=False)
    )


@lowering(aten.kthvalue.default)
def kthvalue(
    builder: Builder, source: Buffer, k: int | Index, dim: int = -1, keepdim: bool = False
) -> tuple[Buffer, ...]:
    rank = IndexValue(as_index(k) - 1, "i64")
    return _picked(builder, source, dim, lambda at: rank, builder.results)


def _median(
    builder: Builder, source: Buffer, dim: int, results: Sequence[Result], *, ignores_nan: bool
) -> tuple[Buffer, ...]:
    """The lower median; NaN if there is one that counts."""
    dim = dim % max(len(source.shape), 1)
    length = source.shape[dim] if source.shape else constant(1)
    if length.constant == 0:
        return tuple(builder.define(lambda at: Constant(math.nan, source.dtype), result) for result in results)
    middle = IndexValue(floor_divide(length - 1, 2), "i64")
    if not is_floating(source.dtype):
        return _picked(builder, source, dim, lambda at: middle, results)
    others = tuple(size for each, size in enumerate(source.shape) if each != dim)
    with builder.part("numbers"):
        numbers = builder.reduce(
            "sum", source, (dim,) if source.shape else (), result=Result("i64", others),
            prepare=lambda value, at: cast(apply("logical_not", apply("is_nan", value)), "i64"),
        )  # fmt: skip

    def position(at: Indices) -> Scalar:
        count = Load(numbers, at)
        if ignores_nan:
            half = apply("div_floor", count - 1, Constant(2, "i64"))
            return apply("maximum", half, Constant(0, "i64"))
        return apply("where", apply("lt", count, IndexValue(length, "i64")), count, middle)

    return _picked(builder, source, dim, position, results)


def _median_rules(*, ignores_nan: bool) -> tuple[Rule, Rule]:
    def along(builder: Builder, source: Buffer, dim: int, keepdim: bool = False) -> tuple[Buffer, ...]:
        return _median(builder, source, dim, builder.results, ignores_nan=ignores_nan)

    def of_all(builder: Builder, source: Buffer) -> Buffer:
        total = product(source.shape)
        with builder.part("flat"):
            flat = builder.define(
                lambda at: Load(source, reshaped_indices(source.shape, (total,), at)), Result(source.dtype, (total,))
            )
        return _median(builder, flat, 0, builder.results, ignores_nan=ignores_nan)[0]

    return along, of_all


for _ignores_nan, _packet in ((False, aten.median), (True, aten.nanmedian)):
    _along_rule, _whole_rule = _median_rules(ignores_nan=_ignores_nan)
    lowering(_packet.dim)(_along_rule)
    lowering(_packet.default)(_whole_rule)
