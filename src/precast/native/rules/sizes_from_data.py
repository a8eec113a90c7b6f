"""Operators with data-dependent result sizes: nonzero, masks, unique, numbers read from tensors.

Before::

    %nonzero = aten.nonzero(%mask)          (u, 1), where u is known only once it has run

After::

    call nonzero: places, count = nonzero(mask)
    run nonzero_rest: …                     a part of the program that reads u from `count`, and has all that follows
"""

from __future__ import annotations

import sympy
import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant, product
from precast.native.loops.program import Check
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast
from precast.native.rules.builder import Builder, Indices, Result, broadcast_indices
from precast.native.rules.conditions import compare, refuse_any, sure_place
from precast.native.rules.indexing import broadcast_shape, chosen_places, coordinate_of
from precast.native.rules.registry import DECLINED, Found, Lowered, lowering
from precast.native.rules.sizes import expression_to_index
from precast.native.rules.view import reshaped_indices

aten = torch.ops.aten
RELATIONS = {
    sympy.Eq: "eq", sympy.Ne: "ne", sympy.StrictLessThan: "lt", sympy.LessThan: "le", sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
}  # fmt: skip
CHECKED = (*RELATIONS, type(sympy.true))
"""The kinds of conditions on sizes that programs assert."""
NO_BOUND = constant(2**62)
"""No buffer can be larger."""


@lowering(aten.nonzero.default)
def nonzero(builder: Builder, source: Buffer) -> Lowered:
    places, count = chosen_places(builder, source)

    def element(at: Indices) -> Scalar:
        value: Scalar = Constant(0, "i64")
        for dim in reversed(range(len(source.shape))):
            chosen = coordinate_of(places, at[0], source.shape, dim)
            is_last = dim == len(source.shape) - 1
            value = chosen if is_last else apply("where", compare("eq", at[1], dim), chosen, value)
        return value

    return Found(count, builder.result.shape[0], product(source.shape), lambda inner: inner.define(element))


@lowering(aten.masked_select.default)
def masked_select(builder: Builder, source: Buffer, mask: Buffer) -> Lowered:
    shape = broadcast_shape([source.shape, mask.shape])
    with builder.part("mask"):
        wide = builder.define(lambda at: Load(mask, broadcast_indices(mask.shape, at)), Result("bool", shape))
    places, count = chosen_places(builder, wide)
    total = product(shape)

    def element(at: Indices) -> Scalar:
        place = sure_place("place", Load(places, at), total)
        where = reshaped_indices(shape, (total,), (place,))
        return Load(source, broadcast_indices(source.shape, where))

    return Found(count, builder.result.shape[0], total, lambda inner: inner.define(element))


def _unique(builder: Builder, source: Buffer, *, is_ordered: bool) -> Lowered:
    total = product(source.shape)
    row, same = Result("i64", (total,)), Result(source.dtype, (total,))
    with builder.part("flat"):
        flat = builder.define(lambda at: Load(source, reshaped_indices(source.shape, (total,), at)), same)
    with builder.part("found"):
        results = same, row, row, Result("i64", ())
        values, numbers, counts, count = builder.call("unique", [flat], [int(is_ordered)], results)

    def define(inner: Builder) -> tuple[Buffer, ...]:
        first, second, third = inner.results
        return (
            inner.define(lambda at: Load(values, at), first),
            _nothing(inner, second) or inner.define(
                lambda at: Load(numbers, reshaped_indices((total,), source.shape, at)), second),
            _nothing(inner, third) or inner.define(lambda at: Load(counts, at), third),
        )  # fmt: skip

    return Found(count, builder.results[0].shape[0], total, define)


def _nothing(builder: Builder, result: Result) -> Buffer | None:
    """A result that was not requested."""
    return builder.define(lambda at: Constant(0, "i64"), result) if constant(0) in result.shape else None


@lowering(aten._unique2.default)
def unique(
    builder: Builder, source: Buffer, is_sorted: bool = True, with_numbers: bool = False, with_counts: bool = False
) -> Lowered:
    return _unique(builder, source, is_ordered=True)


@lowering(aten.unique_consecutive.default)
def unique_consecutive(
    builder: Builder, source: Buffer, with_numbers: bool = False, with_counts: bool = False, dim: int | None = None
) -> Lowered:
    return _unique(builder, source, is_ordered=False) if dim is None or len(source.shape) == 1 else DECLINED


@lowering(aten._local_scalar_dense.default)
def item(builder: Builder, source: Buffer) -> Lowered:
    with builder.part("item"):
        number = builder.define(
            lambda at: cast(Load(source, (constant(0),) * len(source.shape)), "i64"), Result("i64", ())
        )
    found = builder.number
    if found is None:
        return DECLINED
    return Found(number, found, builder.bound or NO_BOUND, lambda inner: found)


@lowering(aten.repeat_interleave.Tensor)
def repeat_interleave(builder: Builder, repeats: Buffer, *, output_size: Index | int | None = None) -> Lowered:
    zero = Constant(0, repeats.dtype)
    refuse_any(builder, repeats, lambda value: apply("lt", value, zero), "repeats can not be negative")
    with builder.part("ends"):
        (ends,) = builder.call("scan", [repeats], [0, 0], [Result(repeats.dtype, repeats.shape)])
    with builder.part("total"):
        total = builder.reduce("sum", repeats, [0], result=Result("i64", ()), accumulate="i64")

    def define(inner: Builder) -> Buffer:
        with inner.part("numbers"):
            numbers = inner.define(
                lambda at: IndexValue(at[0], repeats.dtype), Result(repeats.dtype, inner.result.shape)
            )
        with inner.part("found"):
            (rows,) = inner.call("search", [ends, numbers], [1, 0], [Result("i64", inner.result.shape)])
        return inner.define(lambda at: cast(Load(rows, at), inner.result.dtype))

    if output_size is None:
        return Found(total, builder.result.shape[0], builder.bound or NO_BOUND, define)
    with builder.part("wrong"):
        size = IndexValue(builder.result.shape[0], "i64")
        failed = builder.define(lambda at: apply("ne", Load(total, ()), size), Result("bool", ()))
    message = "allocated size does not match required size"
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))
    return define(builder)


@lowering(aten._assert_scalar.default)
def assert_scalar(builder: Builder, condition: torch.SymBool | bool, message: str) -> tuple[Buffer, ...]:
    """Assertions of the program, or the user, about data-dependent sizes."""
    expression = condition.node.expr if isinstance(condition, torch.SymBool) else sympy.sympify(condition)
    if expression is sympy.true:
        return ()
    relation = RELATIONS[type(expression)]
    left, right = map(expression_to_index, expression.args)
    with builder.part("broken"):
        failed = builder.define(lambda at: apply("logical_not", compare(relation, left, right)), Result("bool", ()))
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))
    return ()
