"""Operators that rename subscripts: no data moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.ir.loops.buffers import Buffer, contiguous_strides
from precast.ir.loops.index import Index, constant, floor_divide, remainder
from precast.lower.builder import Builder, Indices, broadcast_indices
from precast.lower.registry import lowering

aten = torch.ops.aten


@lowering(aten.t.default)
def t(builder: Builder, source: Buffer) -> Buffer:
    return builder.view(source, lambda at: at[::-1])


@lowering(aten.expand.default)
def expand(builder: Builder, source: Buffer, size: Sequence[Index | int], *, implicit: bool = False) -> Buffer:
    return builder.view(source, lambda at: broadcast_indices(source.shape, at))


@lowering(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def view(builder: Builder, source: Buffer, size: Sequence[Index | int]) -> Buffer:
    return builder.view(source, lambda at: reshaped_indices(source.shape, builder.result.shape, at))


def reshaped_indices(old: Indices, new: Indices, at: Indices) -> Indices:
    """Subscripts in shape `old` of the element that has subscripts `at` in shape `new`, in row-major order."""
    flat = constant(0)
    for position, stride in zip(at, contiguous_strides(new), strict=True):
        flat = flat + position * stride
    indices = []
    for dim, (size, stride) in enumerate(zip(old, contiguous_strides(old), strict=True)):
        quotient = floor_divide(flat, stride)
        indices.append(constant(0) if size.constant == 1 else quotient if dim == 0 else remainder(quotient, size))
    return tuple(indices)
