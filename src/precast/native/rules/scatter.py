"""Writing at subscripts that other tensors hold: scatter, index_put, index_add, gradients of embeddings.

Before: ``scatter_add(x, 0, index, source)``
After::

    for i0, i1:  result[i0, i1] = x[i0, i1]
    for s0, s1:  result[{index[s0, s1]}, s1] <- sum source[s0, s1] if it is inside
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, product
from precast.native.loops.program import Check, Store
from precast.native.loops.routines import SCAN_KINDS
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import (
    Builder,
    Indices,
    Operand,
    Result,
    broadcast_indices,
    element,
    is_floating,
    math_dtype,
)
from precast.native.rules.conditions import all_of, check_bounds, out_of_bounds, place
from precast.native.rules.indexing import OUT_OF_RANGE, advanced, check_indices, has_mask
from precast.native.rules.registry import DECLINED, Lowered, lowering
from precast.native.rules.view import place_in_memory, reshaped_indices

aten = torch.ops.aten

Target = tuple[Indices, Scalar]
"""The subscripts that an element is written to, and whether it is written at all."""
_COMBINATIONS = {
    "add": "sum", "sum": "sum", "mean": "sum", "multiply": "prod", "prod": "prod", "amax": "max", "amin": "min",
}  # fmt: skip


def scatter_into(
    builder: Builder,
    initial: Operand,
    over: Indices,
    target: Callable[[Indices], Target],
    value: Callable[[Indices], Scalar],
    *,
    combine: str | None = None,
    erased: float | None = None,
    result: Result | None = None,
) -> Buffer:
    """``result = initial``, then for all subscripts below `over`: write ``value(at)`` at ``target(at)``.

    With `erased`, all targets are set to it first.
    """
    result = result or builder.result
    dtype = result.dtype

    def start(at: Indices) -> Scalar:
        return cast(element(initial, at, dtype), dtype)

    def write(buffer: Buffer, at: Indices) -> list[Store]:
        where, guard = target(at)
        return [Store(buffer, where, cast(value(at), dtype), guard, combine)]

    def erase(buffer: Buffer, at: Indices) -> list[Store]:
        where, guard = target(at)
        return [Store(buffer, where, as_scalar(erased or 0, dtype), guard)]

    passes = [write] if erased is None else [erase, write]
    return builder.scatter(start, [(over, each) for each in passes], result)


def _along(source: Buffer, dim: int, index: Buffer) -> Callable[[Indices], Target]:
    """Targets of the scatter family: the subscripts in `index`, except for dimension `dim`."""
    if not source.shape:
        return lambda at: ((), place("position", Load(index, at), constant(1)).is_inside)

    def target(at: Indices) -> Target:
        where = place("position", Load(index, at), source.shape[dim])
        return (*at[:dim], where.index, *at[dim + 1 :]), where.is_inside

    return target


def _scatter(builder: Builder, source: Buffer, dim: int, index: Buffer, value: Operand, reduce: str | None) -> Buffer:
    if _is_empty_index(source, index):
        return builder.pointwise(lambda value: value, source)
    dim = dim % max(len(source.shape), 1)
    size = source.shape[dim] if source.shape else constant(1)
    check_bounds(builder, index, size, error="value", message=out_of_bounds(dim, size))

    def written(at: Indices) -> Scalar:
        # The source may be larger than the index: only its leading part is used.
        return cast(Load(value, at), source.dtype) if isinstance(value, Buffer) and value.shape else element(
            value, (), source.dtype)  # fmt: skip

    if reduce is None and source.shape and _chooses_one(source, dim, index):
        return builder.define(lambda at: _chosen(source, dim, index, at, written))
    combine = None if reduce is None else _COMBINATIONS[reduce]
    return scatter_into(builder, source, index.shape, _along(source, dim, index), written, combine=combine)


def _is_empty_index(source: Buffer, index: Buffer) -> bool:
    """Whether an index has a different rank than its source, as only an empty one may."""
    return max(len(source.shape), 1) != max(len(index.shape), 1)


def _chooses_one(source: Buffer, dim: int, index: Buffer) -> bool:
    """Whether one element of each line along `dim` is written: comparing subscripts is then as cheap as a scatter."""
    wanted = tuple(constant(1) if number == dim else size for number, size in enumerate(source.shape))
    return index.shape == wanted


def _chosen(source: Buffer, dim: int, index: Buffer, at: Indices, written: Callable[[Indices], Scalar]) -> Scalar:
    line = (*at[:dim], constant(0), *at[dim + 1 :])
    is_chosen = apply("eq", IndexValue(at[dim], "i64"), cast(Load(index, line), "i64"))
    return apply("where", is_chosen, written(line), Load(source, at))


@lowering(aten.scatter.src, aten.scatter.value)
def scatter(builder: Builder, source: Buffer, dim: int, index: Buffer, src: Operand) -> Buffer:
    return _scatter(builder, source, dim, index, src, None)


@lowering(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(builder: Builder, source: Buffer, dim: int, index: Buffer, src: Operand, *, reduce: str) -> Buffer:
    return _scatter(builder, source, dim, index, src, reduce)


@lowering(aten.scatter_add.default)
def scatter_add(builder: Builder, source: Buffer, dim: int, index: Buffer, src: Buffer) -> Buffer:
    return _scatter(builder, source, dim, index, src, "sum")


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    builder: Builder, source: Buffer, dim: int, index: Buffer, src: Buffer, reduce: str, *, include_self: bool = True
) -> Buffer:
    if _is_empty_index(source, index):
        return builder.pointwise(lambda value: value, source)
    dim = dim % max(len(source.shape), 1)
    size = source.shape[dim] if source.shape else constant(1)
    check_bounds(builder, index, size, error="value", message=out_of_bounds(dim, size))

    def written(at: Indices) -> Scalar:
        return Load(src, at if src.shape else ())

    return _reduced(builder, source, index.shape, _along(source, dim, index), written, reduce, include_self)


def _reduced(
    builder: Builder,
    source: Buffer,
    over: Indices,
    target: Callable[[Indices], Target],
    written: Callable[[Indices], Scalar],
    reduce: str,
    include_self: bool,
) -> Buffer:
    combine = _COMBINATIONS[reduce]
    erased = None if include_self else neutral(combine, source.dtype)
    total = scatter_into(builder, source, over, target, written, combine=combine, erased=erased)
    if reduce != "mean":
        return total
    counts = scatter_into(
        builder, 1 if include_self else 0, over, target, lambda at: Constant(1, "i64"), combine="sum",
        result=Result("i64", source.shape),
    )  # fmt: skip
    operation = "div" if is_floating(source.dtype) else "div_floor"

    def divided(sum_: Scalar, count: Scalar) -> Scalar:
        return apply(operation, sum_, apply("maximum", count, as_scalar(1, count.dtype)))

    return builder.pointwise(divided, total, counts)


def neutral(combine: str, dtype: str) -> float:
    """The neutral element of a reduction."""
    if combine in ("sum", "prod"):
        return 0 if combine == "sum" else 1
    if is_floating(dtype):
        return float("-inf") if combine == "max" else float("inf")
    if dtype == "bool":
        return combine == "min"
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    return limits.min if combine == "max" else limits.max


@lowering(aten.put.default)
def put(builder: Builder, source: Buffer, index: Buffer, values: Buffer, accumulate: bool = False) -> Buffer:
    """Write at positions that are flat indices into the tensor."""
    total = product(source.shape)
    check_bounds(builder, index, total, error="index", message=OUT_OF_RANGE, wraps=True)

    def target(at: Indices) -> Target:
        where = place("position", Load(index, at), total, wraps=True)
        return reshaped_indices(source.shape, (total,), (where.index,)), where.is_inside

    def written(at: Indices) -> Scalar:
        return Load(values, reshaped_indices(values.shape, index.shape, at))

    return scatter_into(builder, source, index.shape, target, written, combine="sum" if accumulate else None)


@lowering(aten.index_reduce.default)
def index_reduce(
    builder: Builder, source: Buffer, dim: int, index: Buffer, values: Buffer, reduce: str, *, include_self: bool = True
) -> Buffer:
    dim = dim % max(len(source.shape), 1)
    size = source.shape[dim] if source.shape else constant(1)
    check_bounds(builder, index, size, error="index", message=out_of_bounds(dim, size))
    over, target = _index_shape(values, index), _rows(source, dim, index)
    return _reduced(
        builder, source, over, target, lambda at: Load(values, at[: len(values.shape)]), reduce, include_self
    )


@lowering(aten.index_add.default)
def index_add(builder: Builder, source: Buffer, dim: int, index: Buffer, values: Buffer, *, alpha: float = 1) -> Buffer:
    dim = dim % max(len(source.shape), 1)
    size = source.shape[dim] if source.shape else constant(1)
    message = out_of_bounds(dim, size)
    check_bounds(builder, index, size, error="index", message=message, unless_empty=source.shape)

    def scaled(at: Indices) -> Scalar:
        value = cast(Load(values, at[: len(values.shape)]), math_dtype(source.dtype))
        return value if alpha == 1 else value * alpha

    return scatter_into(builder, source, _index_shape(values, index), _rows(source, dim, index), scaled, combine="sum")


@lowering(aten.index_copy.default)
def index_copy(builder: Builder, source: Buffer, dim: int, index: Buffer, values: Buffer) -> Buffer:
    dim = dim % max(len(source.shape), 1)
    size = source.shape[dim] if source.shape else constant(1)
    beside = (*source.shape[:dim], *source.shape[dim + 1 :])
    check_bounds(builder, index, size, error="index", message=out_of_bounds(dim, size), unless_empty=beside)
    target = _rows(source, dim, index)
    return scatter_into(
        builder, source, _index_shape(values, index), target, lambda at: Load(values, at[: len(values.shape)])
    )


def _index_shape(values: Buffer, index: Buffer) -> Indices:
    return values.shape or index.shape


def _rows(source: Buffer, dim: int, index: Buffer) -> Callable[[Indices], Target]:
    """Targets of whole slices along `dim`: slice n is written to the n-th element of `index`."""

    def target(at: Indices) -> Target:
        chosen = Load(index, at[dim : dim + len(index.shape)])
        where = place("position", chosen, source.shape[dim] if source.shape else constant(1))
        return (*at[:dim], where.index, *at[dim + 1 :])[: len(source.shape)], where.is_inside

    return target


@lowering(aten.embedding_dense_backward.default)
def embedding_backward(
    builder: Builder, gradient: Buffer, indices: Buffer, rows: Index | int, padding: int, scale_by_frequency: bool
) -> Buffer:
    size = builder.result.shape[0]

    def row_of(at: Indices) -> tuple[Index, Scalar]:
        number = cast(Load(indices, at[: len(indices.shape)]), "i64")
        chosen = place("row", number, size)
        is_padding = apply("eq", number, Constant(padding, "i64"))
        return chosen.index, all_of(chosen.is_inside, apply("logical_not", is_padding))

    def target(at: Indices) -> Target:
        row, is_inside = row_of(at)
        return (row, *at[len(indices.shape) :]), is_inside

    def value(at: Indices) -> Scalar:
        dy = cast(Load(gradient, at), math_dtype(gradient.dtype))
        if not scale_by_frequency:
            return dy
        row, is_inside = row_of(at)
        return dy / cast(Load(counts, (row,), is_inside), dy.dtype)

    if scale_by_frequency:
        counts = scatter_into(
            builder, 0, indices.shape, lambda at: _row_only(row_of(at)), lambda at: Constant(1, "i64"), combine="sum",
            result=Result("i64", (size,)),
        )  # fmt: skip
    # Sums of many rows lose digits in 16-bit floats: they are accumulated in single precision, like eager's GEMM.
    wide = Result(math_dtype(builder.result.dtype), builder.result.shape)
    total = scatter_into(builder, 0, gradient.shape, target, value, combine="sum", result=wide)
    return total if wide.dtype == builder.result.dtype else builder.pointwise(lambda sum_: sum_, total)


def _row_only(row: tuple[Index, Scalar]) -> Target:
    return (row[0],), row[1]


@lowering(aten.index_put.default)
def index_put(
    builder: Builder, source: Buffer, indices: Sequence[Buffer | None], values: Buffer, accumulate: bool = False
) -> Lowered:
    if has_mask(indices):
        return _masked_put(builder, source, indices, values, accumulate)
    if all(index is None for index in indices):
        return builder.pointwise(lambda x, y: x + y if accumulate else y, source, values)
    check_indices(builder, source, indices)
    return _put(builder, source, indices, values, accumulate)


@lowering(aten._unsafe_index_put.default)
def unsafe_index_put(
    builder: Builder, source: Buffer, indices: Sequence[Buffer | None], values: Buffer, accumulate: bool = False
) -> Lowered:
    if has_mask(indices):
        return _masked_put(builder, source, indices, values, accumulate)
    return _put(builder, source, indices, values, accumulate)


def _put(
    builder: Builder, source: Buffer, indices: Sequence[Buffer | None], values: Buffer, accumulate: bool
) -> Buffer:
    choice = advanced(source, indices)
    combine = "sum" if accumulate else None

    def written(at: Indices) -> Scalar:
        return element(_without_leading_ones(values, len(at)), at, source.dtype)

    return scatter_into(builder, source, choice.shape, choice.locate, written, combine=combine)


def _without_leading_ones(values: Buffer, rank: int) -> Buffer:
    if len(values.shape) <= rank:
        return values
    extra = len(values.shape) - rank
    return Buffer(values.name, values.dtype, values.shape[extra:], values.strides[extra:])


def _masked_put(
    builder: Builder, source: Buffer, indices: Sequence[Buffer | None], values: Buffer, accumulate: bool
) -> Lowered:
    """``source[:, mask] = values``: the n-th masked element receives the n-th value."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    (dim, mask), *others = given
    rank = len(mask.shape)
    if others or not rank:
        return DECLINED
    compute = math_dtype(source.dtype)
    chosen_rank = len(source.shape) - rank + 1
    trailing = len(source.shape) - dim - rank
    counts = _running_count(builder, mask, values, trailing)

    def formula(at: Indices) -> Scalar:
        own = at[dim : dim + rank]
        is_chosen = is_read = cast(Load(mask, own), "bool")
        turn, shown = constant(0), _without_leading_ones(values, chosen_rank)
        if counts is not None:
            count = Load(counts, reshaped_indices((counts.shape[0],), mask.shape, own))
            # The number of values is checked, but possibly after they are read.
            found = place("turn", count - 1, shown.shape[len(shown.shape) - trailing - 1])
            turn, is_read = found.index, all_of(is_chosen, found.is_inside)
        where = (*at[:dim], turn, *at[dim + rank :])
        assert len(where) == chosen_rank
        places = broadcast_indices(shown.shape, where)
        new = cast(Load(shown, places, is_read), compute)
        old = element(source, at, compute)
        return apply("where", is_chosen, old + new if accumulate else new, old)

    return builder.define(formula)


def _running_count(builder: Builder, mask: Buffer, values: Buffer, trailing: int) -> Buffer | None:
    """The cumulative count of masked elements, which must match the number of values; None for a single value."""
    position = len(values.shape) - trailing - 1
    room = values.shape[position] if position >= 0 else constant(1)
    if room.constant == 1:
        return None
    total = product(mask.shape)
    flat_result = Result("i64", (total,))
    with builder.part("chosen"):
        flat = builder.define(
            lambda at: cast(cast(Load(mask, reshaped_indices(mask.shape, (total,), at)), "bool"), "i64"), flat_result
        )
        (counts,) = builder.call("scan", [flat], [0, SCAN_KINDS.index("sum")], [flat_result])
        chosen = builder.reduce("sum", flat, (0,), result=Result("i64", ()))
        failed = builder.define(lambda at: apply("ne", Load(chosen, ()), IndexValue(room, "i64")), Result("bool", ()))
    message = "shape mismatch: value tensor cannot be broadcast to indexing result"
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))
    return counts


@lowering(aten.masked_scatter_backward.default)
def masked_scatter_backward(builder: Builder, gradient: Buffer, mask: Buffer, sizes: object) -> Buffer:
    """The gradients of the masked elements, packed; 0 for values that were not used."""
    total, room, shape = product(gradient.shape), product(builder.result.shape), builder.result.shape
    flat_result = Result("i64", (total,))

    def chosen_at(at: Indices) -> Scalar:
        own = reshaped_indices(gradient.shape, (total,), at)
        return cast(Load(mask, broadcast_indices(mask.shape, own)), "bool")

    with builder.part("chosen"):
        flat = builder.define(lambda at: cast(chosen_at(at), "i64"), flat_result)
        (counts,) = builder.call("scan", [flat], [0, SCAN_KINDS.index("sum")], [flat_result])

    def target(at: Indices) -> Target:
        turn = place("turn", Load(counts, at) - 1, room)
        return reshaped_indices(shape, (room,), (turn.index,)), all_of(turn.is_inside, chosen_at(at))

    return scatter_into(
        builder, 0, (total,), target, lambda at: Load(gradient, reshaped_indices(gradient.shape, (total,), at))
    )


@lowering(aten.as_strided_scatter.default)
def as_strided_scatter(
    builder: Builder, source: Buffer, values: Buffer, size: object, stride: Sequence[Index | int],
    storage_offset: Index | int | None = None,
) -> Lowered:  # fmt: skip
    located = place_in_memory(source, stride, storage_offset)
    if located is None:
        return DECLINED
    always = Constant(True, "bool")
    return scatter_into(builder, source, values.shape, lambda at: (located(at), always), lambda at: Load(values, at))
