"""Bags of embeddings: sums, means or maxima of rows, bag by bag.

Element n of `indices` is a row of the table; bag b holds the elements from ``offsets[b]`` up to ``offsets[b + 1]``::

    for s0:      begun[offsets[s0]] += 1
    bag        = running sum of begun, less 1
    for s0, s1:  result[{bag[s0]}, s1] <- sum weight[{indices[s0]}, s1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index
from precast.native.loops.program import Check
from precast.native.loops.routines import SCAN_KINDS
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, math_dtype
from precast.native.rules.conditions import Place, all_of, check_bounds, compare, place, refuse_any
from precast.native.rules.indexing import OUT_OF_RANGE
from precast.native.rules.registry import lowering
from precast.native.rules.scatter import Target, scatter_into

aten = torch.ops.aten

_SUM, _MEAN, _MAX = range(3)
_NOWHERE = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class _Bags:
    """The bag of each element of `indices`, and the number of elements in each bag, without padding."""

    indices: Buffer
    bag_of: Buffer
    sizes: Buffer
    padding: int

    @property
    def count(self) -> Index:
        return self.sizes.shape[0]

    def bag(self, number: Index) -> Place:
        return place("bag", Load(self.bag_of, (number,)), self.count)

    def row(self, number: Index, rows: Index) -> Place:
        return place("row", Load(self.indices, (number,)), rows)

    def counts(self, number: Index) -> Scalar:
        row = cast(Load(self.indices, (number,)), "i64")
        return apply("ne", row, Constant(self.padding, "i64"))


def _bags(builder: Builder, indices: Buffer, offsets: Buffer, bags: Index, padding: int) -> _Bags:
    length = Result("i64", indices.shape)
    one = Constant(1, "i64")

    def start(at: Indices) -> Target:
        begins = place("begins", Load(offsets, at), indices.shape[0])
        return (begins.index,), begins.is_inside

    with builder.part("bag"):
        begun = scatter_into(builder, 0, (bags,), start, lambda at: one, combine="sum", result=length)
        (running,) = builder.call("scan", [begun], [0, SCAN_KINDS.index("sum")], [length])
        bag_of = builder.define(lambda at: Load(running, at) - 1, length)
    unsized = _Bags(indices, bag_of, Buffer("", "i64", (bags,), ()), padding)

    def counted(at: Indices) -> Target:
        bag = unsized.bag(at[0])
        return (bag.index,), all_of(bag.is_inside, unsized.counts(at[0]))

    with builder.part("sizes"):
        sizes = scatter_into(
            builder, 0, indices.shape, counted, lambda at: one, combine="sum", result=Result("i64", (bags,))
        )
    return _Bags(indices, bag_of, sizes, padding)


def _check_offsets(builder: Builder, indices: Buffer, offsets: Buffer) -> None:
    """Check that the first bag starts at the first index, and all others within the indices."""
    length, zero = IndexValue(indices.shape[0], "i64"), Constant(0, "i64")
    refuse_any(builder, offsets, lambda begin: apply("lt", cast(begin, "i64"), zero), OUT_OF_RANGE, error="index")
    message = f"offsets[-1] can not be greater than input's length {indices.shape[0]}"
    refuse_any(builder, offsets, lambda begin: apply("gt", cast(begin, "i64"), length), message)

    def begins_late(begin: Scalar, at: Indices) -> Scalar:
        return all_of(compare("eq", at[0], 0), apply("ne", cast(begin, "i64"), zero))

    with builder.part("begins_late"):
        failed = builder.reduce("any", offsets, [0], prepare=begins_late, result=Result("bool", ()))
    message = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0."
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))


@lowering(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    builder: Builder, weight: Buffer, indices: Buffer, offsets: Buffer, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Buffer | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Buffer, ...]:  # fmt: skip
    message = "embedding_bag: Expected idx >= 0 && idx < num_embeddings"
    check_bounds(builder, indices, weight.shape[0], error="value", message=message)
    _check_offsets(builder, indices, offsets)
    result, *others = builder.results
    bags = _bags(builder, indices, offsets, result.shape[0], padding_idx)
    dtype = math_dtype(weight.dtype)
    wide = Result(dtype, result.shape)

    def target(at: Indices) -> Target:
        bag = bags.bag(at[0])
        return (bag.index, at[1]), all_of(bag.is_inside, bags.counts(at[0]))

    def value(at: Indices) -> Scalar:
        row = bags.row(at[0], weight.shape[0])
        found = cast(Load(weight, (row.index, at[1]), row.is_inside), dtype)
        return found if per_sample_weights is None else found * cast(Load(per_sample_weights, at[:1]), dtype)

    def finish(at: Indices) -> Scalar:
        size = Load(bags.sizes, at[:1])
        if mode == _MEAN:
            return Load(total, at) / cast(apply("maximum", size, Constant(1, "i64")), dtype)
        return apply("where", apply("gt", size, Constant(0, "i64")), Load(total, at), as_scalar(0, dtype))

    over = (indices.shape[0], weight.shape[1])
    with builder.part("rows"):
        total = scatter_into(
            builder, -torch.inf if mode == _MAX else 0, over, target, value, combine="max" if mode == _MAX else "sum",
            result=wide,
        )  # fmt: skip
    output = builder.define(finish, result)
    largest = _largest_rows(builder, bags, total, target, value, over) if mode == _MAX else None
    return output, *_bookkeeping(builder, bags, largest, others)


def _largest_rows(
    builder: Builder,
    bags: _Bags,
    total: Buffer,
    target: Callable[[Indices], Target],
    value: Callable[[Indices], Scalar],
    over: Indices,
) -> Buffer:
    """For each element of the result, the row that it came from: the first, if there are several."""
    places = Result("i64", total.shape)

    def is_largest(at: Indices) -> Target:
        where, is_inside = target(at)
        return where, all_of(is_inside, apply("eq", value(at), Load(total, where, is_inside)))

    def row(at: Indices) -> Scalar:
        found = place("first", Load(first, at), over[0])
        return cast(Load(bags.indices, (found.index,), found.is_inside), "i64")

    with builder.part("largest"):
        first = scatter_into(
            builder, _NOWHERE, over, is_largest, lambda at: IndexValue(at[0], "i64"), combine="min", result=places
        )
        return builder.define(row, places)


def _bookkeeping(
    builder: Builder, bags: _Bags, largest: Buffer | None, results: Sequence[Result]
) -> tuple[Buffer, Buffer, Buffer]:
    """What the gradient may need: bags of elements (where eager returns them), sizes of bags, rows of maxima."""
    of_elements, sizes, rows = results
    has_bags = of_elements.shape == bags.indices.shape
    return (
        builder.define(lambda at: Load(bags.bag_of, at) if has_bags else Constant(0, "i64"), of_elements),
        builder.define(lambda at: Load(bags.sizes, at), sizes),
        builder.define(lambda at: Load(bags.sizes if largest is None else largest, at), rows),
    )


@lowering(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    builder: Builder, gradient: Buffer, indices: Buffer, offsets: Buffer, _: Buffer, sizes: Buffer, rows_of: Buffer,
    rows: Index | int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Buffer | None,
    padding_idx: int = -1,
) -> Buffer:  # fmt: skip
    size, dtype = builder.result.shape[0], math_dtype(gradient.dtype)
    wide = Result(dtype, builder.result.shape)
    bags = _bags(builder, indices, offsets, gradient.shape[0], padding_idx)

    def into_largest(at: Indices) -> Target:
        row = place("row", Load(rows_of, at), size)
        return (row.index, at[1]), all_of(row.is_inside, apply("gt", Load(bags.sizes, at[:1]), Constant(0, "i64")))

    def into_row(at: Indices) -> Target:
        row, bag = bags.row(at[0], size), bags.bag(at[0])
        return (row.index, at[1]), all_of(row.is_inside, bag.is_inside, bags.counts(at[0]))

    def share(at: Indices) -> Scalar:
        row, bag = bags.row(at[0], size), bags.bag(at[0])
        dy = cast(Load(gradient, (bag.index, at[1]), bag.is_inside), dtype)
        if per_sample_weights is not None:
            dy = dy * cast(Load(per_sample_weights, at[:1]), dtype)
        if mode == _MEAN:
            dy = dy / cast(Load(bags.sizes, (bag.index,), bag.is_inside), dtype)
        return dy / cast(Load(uses, (row.index,), row.is_inside), dtype) if scale_grad_by_freq else dy

    if scale_grad_by_freq:
        with builder.part("uses"):
            uses = scatter_into(
                builder, 0, indices.shape, lambda at: _first_only(into_row((at[0], at[0]))),
                lambda at: Constant(1, "i64"), combine="sum", result=Result("i64", (size,)),
            )  # fmt: skip
    if mode == _MAX:
        total = scatter_into(
            builder, 0, gradient.shape, into_largest, lambda at: cast(Load(gradient, at), dtype), combine="sum",
            result=wide,
        )  # fmt: skip
    else:
        over = (indices.shape[0], gradient.shape[1])
        total = scatter_into(builder, 0, over, into_row, share, combine="sum", result=wide)
    return total if dtype == builder.result.dtype else builder.pointwise(lambda sum_: sum_, total)


def _first_only(target: Target) -> Target:
    return target[0][:1], target[1]


@lowering(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    builder: Builder, gradient: Buffer, weight: Buffer, indices: Buffer, offsets: Buffer, _: Buffer, mode: int,
    padding_idx: int = -1,
) -> Buffer:  # fmt: skip
    bags = _bags(builder, indices, offsets, gradient.shape[0], padding_idx)
    dtype = math_dtype(gradient.dtype)

    def product_of(at: Indices) -> Scalar:
        row, bag = bags.row(at[0], weight.shape[0]), bags.bag(at[0])
        is_inside = all_of(row.is_inside, bag.is_inside, bags.counts(at[0]))
        dy = cast(Load(gradient, (bag.index, at[1]), is_inside), dtype)
        return dy * cast(Load(weight, (row.index, at[1]), is_inside), dtype)

    return builder.combine("sum", (indices.shape[0], weight.shape[1]), [1], product_of)
