"""Conditions on subscripts, and computed subscripts with the guards that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, as_index, product
from precast.native.loops.program import Check
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, cast, computed
from precast.native.rules.builder import Builder, Indices, Operand, Result, is_floating
from precast.native.rules.registry import Found


@dataclass(frozen=True)
class Place:
    """A computed subscript and whether it is in range: the guard of every access at it."""

    index: Index
    is_inside: Scalar


def compare(operation: str, left: Index | int, right: Index | int) -> Scalar:
    return apply(operation, IndexValue(as_index(left), "i64"), IndexValue(as_index(right), "i64"))


def all_of(*conditions: Scalar) -> Scalar:
    """The conjunction, without conditions that always hold."""
    result: Scalar = Constant(True, "bool")
    for each in conditions:
        is_true = isinstance(result, Constant) and result.value is True
        is_certain = isinstance(each, Constant) and each.value is True
        result = each if is_true else result if is_certain else apply("logical_and", result, each)
    return result


def is_within(position: Index, size: Index) -> Scalar:
    """Whether ``0 <= position < size``."""
    return all_of(compare("ge", position, 0), compare("lt", position, size))


def place(name: str, position: Scalar, size: Index, *, wraps: bool = False) -> Place:
    """`position` as a subscript of a dimension of `size`; with `wraps`, negative ones count from the end."""
    number, extent, zero = cast(position, "i64"), IndexValue(size, "i64"), Constant(0, "i64")
    if wraps:
        number = apply("where", apply("lt", number, zero), number + extent, number)
    is_inside = all_of(apply("ge", number, zero), apply("lt", number, extent))
    return Place(computed(name, number, size), is_inside)


def sure_place(name: str, position: Scalar, size: Index) -> Index:
    """`position` as a subscript that is known to be in range."""
    return computed(name, cast(position, "i64"), size, is_certain=True)


def check_bounds(
    builder: Builder,
    positions: Buffer,
    size: Index,
    *,
    error: str,
    message: str,
    wraps: bool = False,
    unless_empty: Iterable[Index] = (),
) -> None:
    """Fail the call if an element of `positions` is out of range for a dimension of `size`.

    Like eager, this checks nothing if a tensor of the sizes `unless_empty` would be empty.
    """
    count = product(unless_empty)
    if count.constant == 0:
        return
    is_looked_at = Constant(True, "bool") if count.constant else compare("gt", count, 0)

    def is_outside(value: Scalar, at: Indices) -> Scalar:
        number, extent = cast(value, "i64"), IndexValue(size, "i64")
        lowest = -extent if wraps else Constant(0, "i64")
        is_wrong = apply("logical_or", apply("lt", number, lowest), apply("ge", number, extent))
        return all_of(is_looked_at, is_wrong)

    dims = range(len(positions.shape))
    with builder.part("outside"):
        failed = builder.reduce("any", positions, dims, prepare=is_outside, result=Result("bool", ()))
    builder.steps.append(Check(failed.name, failed, error, message, (builder.origin,)))


def refuse_any(
    builder: Builder, source: Buffer, is_wrong: Callable[[Scalar], Scalar], message: str, *, error: str = "value"
) -> None:
    """Fail the call if an element of `source` is invalid, as eager does."""
    dims = range(len(source.shape))
    with builder.part("refused"):
        failed = builder.reduce(
            "any", source, dims, prepare=lambda value, at: is_wrong(value), result=Result("bool", ())
        )
    builder.steps.append(Check(failed.name, failed, error, message, (builder.origin,)))


def check_count(builder: Builder, found: Found) -> None:
    """Fail the call if a data-dependent count differs from the size that later operators require."""
    with builder.part("differs"):
        size = IndexValue(found.size, "i64")
        failed = builder.define(lambda at: apply("ne", Load(found.count, ()), size), Result("bool", ()))
    message = "a size that depends on data is not what the program needs it to be"
    builder.steps.append(Check(failed.name, failed, "value", message, (builder.origin,)))


def refuse_zero(builder: Builder, divisor: Operand) -> None:
    """For integer division, fail the call if a divisor is zero and there is something to divide, as eager does."""
    if is_floating(builder.result.dtype) or isinstance(divisor, Index) or (not isinstance(divisor, Buffer) and divisor):
        return
    count = product(builder.result.shape)
    single, is_divided = Result("bool", ()), compare("gt", count, 0)
    with builder.part("divides_by_zero"):
        if isinstance(divisor, Buffer):
            zero = Constant(0, divisor.dtype)
            failed = builder.reduce(
                "any",
                divisor,
                range(len(divisor.shape)),
                prepare=lambda value, at: all_of(apply("eq", value, zero), *([] if count.constant else [is_divided])),
                result=single,
            )
        else:
            failed = builder.define(lambda at: is_divided, single)
    builder.steps.append(Check(failed.name, failed, "value", "ZeroDivisionError", (builder.origin,)))


def out_of_bounds(dim: int, size: Index) -> str:
    return f"index is out of bounds for dimension {dim} with size {size}"
