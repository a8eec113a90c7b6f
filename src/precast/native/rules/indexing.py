"""Reading at subscripts that other tensors hold: embedding, gather, index, index_select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, product
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply
from precast.native.rules.builder import Builder, Indices, Result, broadcast_indices
from precast.native.rules.conditions import Place, all_of, check_bounds, out_of_bounds, place
from precast.native.rules.registry import DECLINED, Found, Lowered, lowering
from precast.native.rules.view import reshaped_indices

aten = torch.ops.aten

OUT_OF_RANGE = "index out of range in self"


@lowering(aten.embedding.default)
def embedding(builder: Builder, weight: Buffer, indices: Buffer, *_: object) -> Buffer:
    check_bounds(builder, indices, weight.shape[0], error="index", message=OUT_OF_RANGE)

    def row(at: Indices) -> Scalar:
        chosen = place("row", Load(indices, at[: len(indices.shape)]), weight.shape[0])
        return Load(weight, (chosen.index, *at[len(indices.shape) :]), chosen.is_inside)

    return builder.define(row)


@lowering(aten.gather.default)
def gather(builder: Builder, source: Buffer, dim: int, index: Buffer, *, sparse_grad: bool = False) -> Buffer:
    if not source.shape:
        check_bounds(builder, index, constant(1), error="value", message=out_of_bounds(0, constant(1)))
        return builder.define(lambda at: Load(source, ()))
    if max(len(index.shape), 1) != len(source.shape):
        # Only an empty index may have a different number of dimensions.
        return builder.define(lambda at: Constant(0, source.dtype))
    dim = dim % len(source.shape)
    check_bounds(builder, index, source.shape[dim], error="value", message=out_of_bounds(dim, source.shape[dim]))

    def chosen(at: Indices) -> Scalar:
        # A zero-dim index goes with a source of one dimension.
        where = place("position", Load(index, at), source.shape[dim])
        return Load(source, (*at[:dim], where.index, *at[dim + 1 :]), where.is_inside)

    return builder.define(chosen)


@lowering(aten.index_select.default)
def index_select(builder: Builder, source: Buffer, dim: int, index: Buffer) -> Buffer:
    if not source.shape:
        check_bounds(builder, index, constant(1), error="index", message=OUT_OF_RANGE)
        return builder.define(lambda at: Load(source, ()))
    dim = dim % len(source.shape)
    check_bounds(builder, index, source.shape[dim], error="index", message=OUT_OF_RANGE)

    def chosen(at: Indices) -> Scalar:
        where = place("position", Load(index, at[dim : dim + len(index.shape)]), source.shape[dim])
        return Load(source, (*at[:dim], where.index, *at[dim + 1 :]), where.is_inside)

    return builder.define(chosen)


@lowering(aten.take.default)
def take(builder: Builder, source: Buffer, index: Buffer) -> Buffer:
    total = product(source.shape)
    check_bounds(builder, index, total, error="index", message=OUT_OF_RANGE, wraps=True)

    def chosen(at: Indices) -> Scalar:
        where = place("position", Load(index, at), total, wraps=True)
        return Load(source, reshaped_indices(source.shape, (total,), (where.index,)), where.is_inside)

    return builder.define(chosen)


@dataclass(frozen=True)
class Advanced:
    """The meaning of ``source[indices]``: the result's indexed shape, and the source subscripts of each element."""

    shape: Indices
    locate: Callable[[Indices], tuple[Indices, Scalar]]


def advanced(source: Buffer, indices: Sequence[Buffer | None]) -> Advanced:
    """Indexing by integer tensors, one per dimension, None for a full slice; they are broadcast as in NumPy."""
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    chosen_shape = broadcast_shape([index.shape for index in given.values()])
    others = [dim for dim in range(len(source.shape)) if dim not in given]
    first, last = min(given), max(given)
    # Adjacent indexed dimensions are replaced in place; otherwise the indexed shape comes first.
    start = first if last - first + 1 == len(given) else 0
    before, after = others[:start], others[start:]
    shape = (*(source.shape[dim] for dim in before), *chosen_shape, *(source.shape[dim] for dim in after))

    def locate(at: Indices) -> tuple[Indices, Scalar]:
        choice = at[start : start + len(chosen_shape)]
        plain = dict(zip(others, (*at[:start], *at[start + len(chosen_shape) :]), strict=True))
        places: dict[int, Place] = {
            dim: place(
                f"position{dim}", Load(index, broadcast_indices(index.shape, choice)), source.shape[dim], wraps=True
            )
            for dim, index in given.items()
        }
        where = tuple(places[dim].index if dim in places else plain[dim] for dim in range(len(source.shape)))
        return where, all_of(*(each.is_inside for each in places.values()))

    return Advanced(shape, locate)


def check_indices(builder: Builder, source: Buffer, indices: Sequence[Buffer | None]) -> None:
    """Fail the call if an index is out of range; if other dimensions are empty, eager does not check."""
    beside = [size for size, index in zip_longest(source.shape, indices) if index is None]
    for dim, index in enumerate(indices):
        if index is not None:
            message = out_of_bounds(dim, source.shape[dim])
            check_bounds(
                builder,
                index,
                source.shape[dim],
                error="index",
                message=message,
                wraps=True,
                unless_empty=beside,
            )


def has_mask(indices: Sequence[Buffer | None]) -> bool:
    return any(index is not None and index.dtype in ("bool", "u8") for index in indices)


def broadcast_shape(shapes: Sequence[Indices]) -> Indices:
    rank = max(map(len, shapes))
    result = [constant(1)] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, start=rank - len(shape)):
            result[dim] = result[dim] if size.constant == 1 else size
    return tuple(result)


def _index(builder: Builder, source: Buffer, indices: Sequence[Buffer | None], *, is_checked: bool) -> Lowered:
    if has_mask(indices):
        return _index_by_mask(builder, source, indices)
    if all(index is None for index in indices):
        return builder.define(lambda at: Load(source, at))
    if is_checked:
        check_indices(builder, source, indices)
    return _index_by_places(builder, source, indices)


def _index_by_places(builder: Builder, source: Buffer, indices: Sequence[Buffer | None]) -> Buffer:
    choice = advanced(source, indices)

    def chosen(at: Indices) -> Scalar:
        where, is_inside = choice.locate(at)
        return Load(source, where, is_inside)

    return builder.define(chosen)


def chosen_places(builder: Builder, mask: Buffer) -> tuple[Buffer, Buffer]:
    """The row-major positions of nonzero elements, and their number."""
    results = Result("i64", (product(mask.shape),)), Result("i64", ())
    with builder.part("places"):
        written, count = builder.call("nonzero", [mask], results=results)
        places = written
        if not builder.new_sizes:
            # Places after the last are not written; the check that none of those is read comes later.
            places = builder.define(
                lambda at: apply(
                    "where",
                    apply("lt", IndexValue(at[0], "i64"), Load(count, ())),
                    Load(written, at),
                    Constant(0, "i64"),
                ),
                results[0],
            )
    return places, count


def coordinate_of(places: Buffer, number: Index, shape: Indices, dim: int) -> Scalar:
    """The coordinate of a nonzero position along one dimension."""
    below = IndexValue(product(shape[dim + 1 :]), "i64")
    whole = apply("div_floor", Load(places, (number,)), below)
    return whole if dim == 0 else apply("remainder", whole, IndexValue(shape[dim], "i64"))


def _index_by_mask(builder: Builder, source: Buffer, indices: Sequence[Buffer | None]) -> Lowered:
    """``source[mask]``, with full slices before and after."""
    given = [index for index in indices if index is not None]
    if len(given) != 1:
        return DECLINED
    (mask,) = given
    dims = range(len(mask.shape))
    places, count = chosen_places(builder, mask)

    start = list(indices).index(mask)

    def column(inner: Builder, dim: int) -> Buffer:
        with inner.part(f"column{dim}"):
            result = Result("i64", (inner.result.shape[start],))
            return inner.define(lambda at: coordinate_of(places, at[0], mask.shape, dim), result)

    def define(inner: Builder) -> Buffer:
        columns = [column(inner, dim) for dim in dims]
        return _index_by_places(inner, source, [*indices[:start], *columns, *indices[start + 1 :]])

    return Found(count, builder.result.shape[start], product(mask.shape), define)


@lowering(aten.index.Tensor)
def index(builder: Builder, source: Buffer, indices: Sequence[Buffer | None]) -> Lowered:
    return _index(builder, source, indices, is_checked=True)


@lowering(aten._unsafe_index.Tensor)
def unsafe_index(builder: Builder, source: Buffer, indices: Sequence[Buffer | None]) -> Lowered:
    return _index(builder, source, indices, is_checked=False)
