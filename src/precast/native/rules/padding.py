"""Padding by reflection and replication: subscripts are reflected or clamped; gradients use the same subscripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, as_index, maximum, minimum
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, cast
from precast.native.rules.builder import Builder, Indices, Result, math_dtype
from precast.native.rules.conditions import sure_place
from precast.native.rules.registry import Rule, lowering
from precast.native.rules.scatter import scatter_into

aten = torch.ops.aten

Turn = Callable[[Index, Index], Index]


def reflected(position: Index, size: Index) -> Index:
    """Reflect at both borders, without repeating the border elements."""
    from_start = maximum(position, position * -1)
    from_end = size - 1 - from_start
    return size - 1 - maximum(from_end, from_end * -1)


def replicated(position: Index, size: Index) -> Index:
    return minimum(maximum(position, 0), size - 1)


def _inside(shape: Indices, pads: Sequence[Index | int], at: Indices, turn: Turn) -> Indices:
    """The source subscripts, in a tensor of `shape`, of the padded element at `at`."""
    found = list(at)
    for pair in range(len(pads) // 2):
        dim = len(shape) - 1 - pair
        found[dim] = turn(at[dim] - as_index(pads[2 * pair]), shape[dim])
    return tuple(found)


def _pad_rules(turn: Turn) -> tuple[Rule, Rule]:
    def forward(builder: Builder, source: Buffer, pads: Sequence[Index | int]) -> Buffer:
        return builder.view(source, lambda at: _inside(source.shape, pads, at, turn))

    def backward(builder: Builder, gradient: Buffer, source: Buffer, pads: Sequence[Index | int]) -> Buffer:
        wide = Result(math_dtype(gradient.dtype), source.shape)

        def target(at: Indices) -> tuple[Indices, Scalar]:
            inside = _inside(source.shape, pads, at, turn)
            padded = {len(source.shape) - 1 - pair for pair in range(len(pads) // 2)}
            places = tuple(
                sure_place("inside", IndexValue(position, "i64"), source.shape[dim]) if dim in padded else position
                for dim, position in enumerate(inside)
            )
            return places, Constant(True, "bool")

        total = scatter_into(
            builder, 0, gradient.shape, target, lambda at: cast(Load(gradient, at), wide.dtype), combine="sum",
            result=wide,
        )  # fmt: skip
        return total if wide.dtype == gradient.dtype else builder.define(lambda at: Load(total, at))

    return forward, backward


for _name, _turn in (("reflection", reflected), ("replication", replicated)):
    for _dimensions in (1, 2, 3):
        _forward, _backward = _pad_rules(_turn)
        lowering(getattr(aten, f"{_name}_pad{_dimensions}d").default)(_forward)
        lowering(getattr(aten, f"{_name}_pad{_dimensions}d_backward").default)(_backward)
