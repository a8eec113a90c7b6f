"""Matrix products: one library call; bias and scale become loops that fuse with what follows."""

from __future__ import annotations

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.scalars import Scalar
from precast.lower.builder import Builder
from precast.lower.registry import DECLINED, Lowered, lowering
from precast.ops.grouped_products import grouped_rows, grouped_sums

aten = torch.ops.aten


@lowering(aten.mm.default, aten.bmm.default)
def matmul(builder: Builder, left: Buffer, right: Buffer) -> Buffer:
    return builder.matmul(left, right)


@lowering(aten.addmm.default, aten.baddbmm.default)
def add_matmul(
    builder: Builder, bias: Buffer, left: Buffer, right: Buffer, *, beta: float = 1, alpha: float = 1
) -> Buffer:
    product = builder.matmul(left, right)
    if beta == 0:
        # Eager does not even read the bias then: its NaNs do not spread.
        return builder.pointwise(lambda value: value * alpha, product)
    return builder.pointwise(lambda value, added: _scaled(added, beta) + _scaled(value, alpha), product, bias)


@lowering(grouped_rows)
def rows_of_groups(builder: Builder, rows: Buffer, matrices: Buffer, ends: Buffer) -> Lowered:
    return _grouped(builder, rows, matrices, ends, is_sum=False)


@lowering(grouped_sums)
def sums_of_groups(builder: Builder, left: Buffer, right: Buffer, ends: Buffer) -> Lowered:
    return _grouped(builder, left, right, ends, is_sum=True)


def _grouped(builder: Builder, left: Buffer, right: Buffer, ends: Buffer, *, is_sum: bool) -> Lowered:
    if left.dtype == "f16":
        # The routine multiplies in the type that it is given, and few processors multiply this one.
        return DECLINED
    (result,) = builder.call("grouped_product", [left, right, ends], [int(is_sum)])
    return result


def _scaled(value: Scalar, factor: float) -> Scalar:
    return value if factor == 1 else value * factor
