"""Operators that combine elements along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.ir.loops.buffers import Buffer
from precast.lower.builder import Builder
from precast.lower.registry import lowering

aten = torch.ops.aten


def reduced_dims(source: Buffer, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    """Dimension numbers from 0; none given means all."""
    rank = len(source.shape)
    given = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(sorted(dim % rank for dim in given)) if rank else ()


def sum_dtype(dtype: str) -> str:
    """The type to add up in: double for floats, so that long sums lose nothing; 64 bits for integers, as eager."""
    return "f64" if dtype in ("f64", "f32", "f16", "bf16") else "i64"


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    builder: Builder,
    source: Buffer,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Buffer:
    return builder.reduce("sum", source, reduced_dims(source, dim), accumulate=sum_dtype(builder.result.dtype))
