"""View operators: they map subscripts, and move no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from precast.native.loops.buffers import Buffer, contiguous_strides
from precast.native.loops.index import Index, as_index, constant, floor_divide, product, remainder
from precast.native.loops.scalars import Constant, Load, Scalar, apply, cast
from precast.native.rules.builder import Builder, Indices, broadcast_indices, is_dense
from precast.native.rules.conditions import all_of, compare, is_within
from precast.native.rules.registry import DECLINED, Lowered, lowering

aten = torch.ops.aten

Size = Index | int


@lowering(aten.t.default)
def t(builder: Builder, source: Buffer) -> Buffer:
    return builder.view(source, lambda at: at[::-1])


@lowering(aten.transpose.int)
def transpose(builder: Builder, source: Buffer, dim0: int, dim1: int) -> Buffer:
    order = list(range(len(source.shape)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return builder.view(source, lambda at: [at[dim] for dim in order])


@lowering(aten.permute.default)
def permute(builder: Builder, source: Buffer, dims: Sequence[int]) -> Buffer:
    rank = len(dims)
    places = {dim % rank: place for place, dim in enumerate(dims)} if rank else {}
    return builder.view(source, lambda at: [at[places[dim]] for dim in range(rank)])


@lowering(aten.expand.default)
def expand(builder: Builder, source: Buffer, size: Sequence[Size], *, implicit: bool = False) -> Buffer:
    return builder.view(source, lambda at: broadcast_indices(source.shape, at))


@lowering(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default,
)  # fmt: skip
def reshape(builder: Builder, source: Buffer, *_: object) -> Buffer:
    return builder.view(source, lambda at: reshaped_indices(source.shape, builder.result.shape, at))


def reshaped_indices(old: Indices, new: Indices, at: Indices) -> Indices:
    """Subscripts in shape `old` of the element that has subscripts `at` in shape `new`, in row-major order."""
    without_ones = [each for size, each in zip(new, at, strict=True) if size.constant != 1]
    if [size for size in old if size.constant != 1] == [size for size in new if size.constant != 1]:
        # Only dimensions of size 1 were added or removed.
        remaining = iter(without_ones)
        return tuple(constant(0) if size.constant == 1 else next(remaining) for size in old)
    flat = constant(0)
    for position, stride in zip(at, contiguous_strides(new), strict=True):
        flat = flat + position * stride
    indices = []
    for dim, (size, stride) in enumerate(zip(old, contiguous_strides(old), strict=True)):
        quotient = floor_divide(flat, stride)
        indices.append(constant(0) if size.constant == 1 else quotient if dim == 0 else remainder(quotient, size))
    return tuple(indices)


@lowering(aten.select.int)
def select(builder: Builder, source: Buffer, dim: int, index: Size) -> Buffer:
    dim = dim % len(source.shape)
    position = _from_start(index, source.shape[dim])
    return builder.view(source, lambda at: [*at[:dim], position, *at[dim:]])


@lowering(aten.slice.Tensor)
def slice_(
    builder: Builder, source: Buffer, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Buffer:
    dim = dim % len(source.shape)
    first = _clamped(_from_start(0 if start is None else start, source.shape[dim]), source.shape[dim])
    return builder.view(source, lambda at: [*at[:dim], first + at[dim] * step, *at[dim + 1 :]])


@lowering(aten.split.Tensor, aten.split_with_sizes.default)
def split(builder: Builder, source: Buffer, sizes: Size | Sequence[Size], dim: int = 0) -> tuple[Buffer, ...]:
    dim = dim % len(source.shape)
    parts: list[Buffer] = []
    start = constant(0)
    for result in builder.results:
        parts.append(builder.define(partial(_part_of, source, dim, start), result))
        start = start + result.shape[dim]
    return tuple(parts)


def _part_of(source: Buffer, dim: int, start: Index, at: Indices) -> Scalar:
    return Load(source, (*at[:dim], start + at[dim], *at[dim + 1 :]))


@lowering(aten.unbind.int)
def unbind(builder: Builder, source: Buffer, dim: int = 0) -> tuple[Buffer, ...]:
    dim = dim % len(source.shape)

    def member(position: int, at: Indices) -> Scalar:
        return Load(source, (*at[:dim], constant(position), *at[dim:]))

    return tuple(builder.define(partial(member, number), result) for number, result in enumerate(builder.results))


@lowering(aten.flip.default)
def flip(builder: Builder, source: Buffer, dims: Sequence[int]) -> Buffer:
    rank = len(source.shape)
    turned = {dim % rank for dim in dims} if rank else set()
    sizes = source.shape
    return builder.view(source, lambda at: [sizes[dim] - 1 - each if dim in turned else each
                                            for dim, each in enumerate(at)])  # fmt: skip


@lowering(aten.repeat.default)
def repeat(builder: Builder, source: Buffer, repeats: Sequence[Size]) -> Buffer:
    skipped = len(repeats) - len(source.shape)

    def wrapped(at: Indices) -> list[Index]:
        return [remainder(each, size) for each, size in zip(at[skipped:], source.shape, strict=True)]

    return builder.view(source, wrapped)


@lowering(aten.cat.default)
def cat(builder: Builder, tensors: Sequence[Buffer], dim: int = 0) -> Buffer:
    rank = len(builder.result.shape)
    dim = dim % rank
    # A one-dimensional empty tensor may be concatenated with any shape, for backward compatibility.
    parts = [each for each in tensors if len(each.shape) == rank and each.shape[dim].constant != 0]

    def formula(at: Indices) -> Scalar:
        end = sum((part.shape[dim] for part in parts), constant(0))
        value: Scalar = Constant(0, builder.result.dtype)
        for part in reversed(parts):
            start = end - part.shape[dim]
            is_mine = all_of(compare("ge", at[dim], start), compare("lt", at[dim], end))
            value = _part_value(
                part, (*at[:dim], at[dim] - start, *at[dim + 1 :]), is_mine, value, builder.result.dtype
            )
            end = start
        return value

    return builder.define(formula)


def _part_value(part: Buffer, at: Indices, is_mine: Scalar, otherwise: Scalar, dtype: str) -> Scalar:
    loaded: Scalar = Load(part, at, is_mine)
    if part.dtype != dtype:
        loaded = cast(loaded, dtype)
    return apply("where", is_mine, loaded, otherwise)


@lowering(aten.constant_pad_nd.default)
def constant_pad(builder: Builder, source: Buffer, pad: Sequence[Size], value: float = 0) -> Buffer:
    rank = len(source.shape)
    pairs = {rank - 1 - pair: (as_index(pad[2 * pair]), as_index(pad[2 * pair + 1])) for pair in range(len(pad) // 2)}
    before = {dim: start for dim, (start, end) in pairs.items() if (start, end) != (constant(0), constant(0))}
    if not before:
        return builder.view(source, lambda at: at)

    def formula(at: Indices) -> Scalar:
        inside = tuple(each - before.get(dim, constant(0)) for dim, each in enumerate(at))
        is_inside = all_of(*(is_within(inside[dim], source.shape[dim]) for dim in sorted(before)))
        return apply("where", is_inside, Load(source, inside, is_inside), Constant(value, source.dtype))

    return builder.define(formula)


def _from_start(position: Size, size: Index) -> Index:
    """Normalize a subscript that may count from the end."""
    known = position.constant if isinstance(position, Index) else position
    return as_index(position) + size if known is not None and known < 0 else as_index(position)


def _clamped(start: Index, size: Index) -> Index:
    if start.constant is None or size.constant is None:
        return start
    return constant(min(max(start.constant, 0), size.constant))


@lowering(aten.slice_scatter.default)
def slice_scatter(
    builder: Builder, source: Buffer, part: Buffer, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: int = 1,
) -> Buffer:  # fmt: skip
    dim = dim % len(source.shape)
    first = _clamped(_from_start(0 if start is None else start, source.shape[dim]), source.shape[dim])

    def formula(at: Indices) -> Scalar:
        steps, rest = floor_divide(at[dim] - first, step), remainder(at[dim] - first, step)
        is_mine = all_of(is_within(steps, part.shape[dim]), compare("eq", rest, 0))
        return _part_value(part, (*at[:dim], steps, *at[dim + 1 :]), is_mine, Load(source, at), source.dtype)

    return builder.define(formula)


@lowering(aten.select_scatter.default)
def select_scatter(builder: Builder, source: Buffer, part: Buffer, dim: int, index: Size) -> Buffer:
    dim = dim % len(source.shape)
    position = _from_start(index, source.shape[dim])

    def formula(at: Indices) -> Scalar:
        is_mine = compare("eq", at[dim], position)
        return _part_value(part, (*at[:dim], *at[dim + 1 :]), is_mine, Load(source, at), source.dtype)

    return builder.define(formula)


@lowering(aten.diagonal.default)
def diagonal(builder: Builder, source: Buffer, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Buffer:
    rank = len(source.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [dim for dim in range(rank) if dim not in (first, second)]

    def located(at: Indices) -> list[Index]:
        place = dict(zip(others, at[:-1], strict=True))
        place[first], place[second] = at[-1] + max(-offset, 0), at[-1] + max(offset, 0)
        return [place[dim] for dim in range(rank)]

    return builder.view(source, located)


@lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    builder: Builder, source: Buffer, part: Buffer, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Buffer:
    rank = len(source.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [dim for dim in range(rank) if dim not in (first, second)]

    def formula(at: Indices) -> Scalar:
        is_mine = compare("eq", at[first] + offset, at[second])
        along = at[second] - max(offset, 0)
        # Off the diagonal, `along` is out of range, and nothing is read.
        return _part_value(part, (*(at[dim] for dim in others), along), is_mine, Load(source, at), source.dtype)

    return builder.define(formula)


@lowering(aten.roll.default)
def roll(builder: Builder, source: Buffer, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Buffer:
    if not dims:
        total = product(source.shape)

        def flat(at: Indices) -> Indices:
            (place,) = reshaped_indices((total,), source.shape, at)
            return reshaped_indices(source.shape, (total,), (remainder(place - shifts[0], total),))

        return builder.view(source, flat)
    if not source.shape:
        return builder.view(source, lambda at: at)
    moved = {dim % len(source.shape): constant(0) for dim in dims}
    for dim, shift in zip(dims, shifts, strict=True):
        moved[dim % len(source.shape)] = moved[dim % len(source.shape)] + shift

    def turned(at: Indices) -> list[Index]:
        return [
            remainder(each - moved[dim], source.shape[dim]) if dim in moved else each for dim, each in enumerate(at)
        ]

    last = len(source.shape) - 1
    size, distance = source.shape[last].constant, moved.get(last, constant(0)).constant
    if not size or not distance:
        return builder.view(source, turned)
    start = distance % size

    def joined(at: Indices) -> Scalar:
        """Two parts of each line: contiguous elements remain so, which a compiler cannot infer from a remainder."""
        outer = turned(at)[:last]
        is_first = compare("lt", at[last], start)
        first = Load(source, (*outer, at[last] + (size - start)), is_first)
        second = Load(source, (*outer, at[last] - start), compare("ge", at[last], start))
        return apply("where", is_first, first, second)

    return builder.define(joined)


@lowering(aten.as_strided.default)
def as_strided(
    builder: Builder, source: Buffer, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None = None
) -> Lowered:
    """Elements by their storage offset, where the source is dense."""
    located = place_in_memory(source, stride, storage_offset)
    return DECLINED if located is None else builder.view(source, located)


def place_in_memory(
    source: Buffer, stride: Sequence[Size], storage_offset: Size | None
) -> Callable[[Indices], Indices] | None:
    """The subscripts in `source` of the element at these strides; None if they cannot be determined."""
    dims = [dim for dim, extent in enumerate(source.shape) if extent.constant != 1]
    strides = {dim: source.strides[dim].constant for dim in dims}
    if not is_dense(source.shape, source.strides) or None in strides.values():
        return None

    def located(at: Indices) -> Indices:
        flat = as_index(storage_offset or 0)
        for position, step in zip(at, stride, strict=True):
            flat = flat + position * step
        return tuple(_along(flat, strides[dim], source.shape[dim]) if dim in strides else constant(0)
                     for dim in range(len(source.shape)))  # fmt: skip

    return located


def _along(flat: Index, stride: int | None, size: Index) -> Index:
    assert stride is not None
    return remainder(floor_divide(flat, stride), size)


@lowering(aten.unfold.default)
def unfold(builder: Builder, source: Buffer, dimension: int, size: int, step: int) -> Buffer:
    """Windows of `size` along a dimension, every `step`; the window's own dimension is the last."""
    if not source.shape:
        return builder.view(source, lambda at: ())
    dim = dimension % len(source.shape)
    return builder.view(source, lambda at: [*at[:dim], at[dim] * step + at[-1], *at[dim + 1 : -1]])


@lowering(aten.pixel_shuffle.default)
def pixel_shuffle(builder: Builder, source: Buffer, factor: int) -> Buffer:
    def located(at: Indices) -> list[Index]:
        *leading, channel, row, column = at
        part = remainder(row, factor) * factor + remainder(column, factor)
        return [*leading, channel * (factor * factor) + part, floor_divide(row, factor), floor_divide(column, factor)]

    return builder.view(source, located)


@lowering(aten.pixel_unshuffle.default)
def pixel_unshuffle(builder: Builder, source: Buffer, factor: int) -> Buffer:
    def located(at: Indices) -> list[Index]:
        *leading, channel, row, column = at
        part = remainder(channel, factor * factor)
        return [
            *leading,
            floor_divide(channel, factor * factor),
            row * factor + floor_divide(part, factor),
            column * factor + remainder(part, factor),
        ]

    return builder.view(source, located)
