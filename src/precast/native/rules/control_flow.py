"""Control flow: subgraphs become parts of the program, which steps run once, repeatedly, or not at all.

Before::

    %cond = cond(%p, true_graph, false_graph, [%x])

After::

    run cond by p:  cond = (x)      with one program for each graph
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from precast.native.loops.buffers import Buffer
from precast.native.loops.program import Part, Repeat, Run
from precast.native.loops.scalars import Load
from precast.native.rules.builder import Builder, Result
from precast.native.rules.lower import lower_part
from precast.native.rules.registry import DECLINED, Lowered, lowering

Operands = Sequence[object]
"""Buffers, sizes and plain constants."""


@lowering(torch.ops.higher_order.cond)
def cond(
    builder: Builder, choice: object, chosen: fx.GraphModule, otherwise: fx.GraphModule, operands: Operands
) -> Lowered:
    if not isinstance(choice, Buffer):
        return DECLINED
    outputs = tuple(map(builder.result_buffer, builder.results))
    parts = tuple(lower_part(each, operands, outputs, builder) for each in (otherwise, chosen))
    builder.steps.append(
        Run(builder.node_name, parts, _buffers(operands), outputs, choice=choice, origins=(builder.origin,))
    )
    return outputs


@lowering(torch.ops.higher_order.while_loop)
def while_loop(
    builder: Builder,
    condition: fx.GraphModule,
    body: fx.GraphModule,
    carried: Sequence[object],
    others: Sequence[object],
) -> Lowered:
    outputs = tuple(map(builder.result_buffer, builder.results))
    first = _arranged(carried, outputs, builder)
    if first is None:
        return DECLINED
    asked = lower_part(condition, [*first, *others], (Buffer("goes_on", "bool", (), ()),), builder)
    repeated = lower_part(body, [*first, *others], outputs, builder)
    _repeat(builder, (repeated, asked), (*first, *_buffers(others)), outputs, len(outputs))
    return outputs


@lowering(torch.ops.higher_order.scan)
def scan(builder: Builder, body: fx.GraphModule, carried: Operands, rows: Operands, others: Operands) -> Lowered:
    scanned, outputs = _buffers(rows), tuple(map(builder.result_buffer, builder.results))
    first = _arranged(carried, outputs, builder)
    if first is None or len(scanned) != len(rows):
        return DECLINED
    seen, filled = map(_rows_of, (scanned, outputs[len(first) :]))
    repeated = lower_part(body, [*first, *seen, *others], (*outputs[: len(first)], *filled), builder)
    _repeat(builder, (repeated,), (*first, *scanned, *_buffers(others)), outputs, len(first), scanned)
    return outputs


@lowering(torch.ops.higher_order.map_impl)
def map_rows(builder: Builder, body: fx.GraphModule, rows: Operands, others: Operands) -> Lowered:
    return scan(builder, body, (), rows, others)


def _repeat(
    builder: Builder,
    parts: tuple[Part, ...],
    inputs: tuple[Buffer, ...],
    outputs: tuple[Buffer, ...],
    carried: int,
    scanned: Sequence[Buffer] = (),
) -> None:
    with builder.part("spare"):
        spares = tuple(builder.buffer(each.dtype, each.shape, each.strides) for each in outputs[:carried])
    count = scanned[0].shape[0] if scanned else None
    step = Repeat(
        builder.node_name, parts, inputs, outputs, carried, len(scanned), count, spares, origins=(builder.origin,)
    )
    builder.steps.append(step)


def _buffers(operands: Operands) -> tuple[Buffer, ...]:
    return tuple(each for each in operands if isinstance(each, Buffer))


def _rows_of(buffers: Sequence[Buffer]) -> list[Buffer]:
    return [Buffer(each.name, each.dtype, each.shape[1:], each.strides[1:]) for each in buffers]


def _copy(source: Buffer, like: Buffer, builder: Builder) -> Buffer:
    return builder.define(lambda at: Load(source, at), Result(like.dtype, like.shape, like.strides))


def _arranged(carried: Operands, outputs: Sequence[Buffer], builder: Builder) -> list[Buffer] | None:
    """The first carried values, converted to the layout of their successors; None if some are not tensors."""
    arranged: list[Buffer] = []
    for value, output in zip(carried, outputs, strict=False):
        if not isinstance(value, Buffer):
            return None
        with builder.part("first"):
            arranged.append(value if value.is_laid_out_like(output) else _copy(value, output, builder))
    return arranged
