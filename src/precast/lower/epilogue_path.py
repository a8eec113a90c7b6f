"""What is done to a loaded value, operation by operation, on its way to where it is stored.

Before: ``maximum((conv[i] - mean[i]) * scale[i], 0)``, seen from ``conv[i]``
After:  add ``-mean[i]``, mul ``scale[i]``, relu
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from precast.ir.loops.scalars import (
    Apply,
    Cast,
    Constant,
    Named,
    Scalar,
    apply,
    as_scalar,
    operands_of,
    walk,
)
from precast.lower.activation import gelu_doubled_of, gelu_of, silu_of


def _hardswish_of(value: Scalar) -> Scalar:
    """As PyTorch takes it apart."""
    above = apply("maximum", value + 3.0, as_scalar(0, value.dtype))
    return value * apply("minimum", above, as_scalar(6, value.dtype)) / 6.0


ACTIVATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "gelu": lambda value: gelu_of(value, "none"),
    "gelu_doubled": gelu_doubled_of,
    "gelu_tanh": lambda value: gelu_of(value, "tanh"),
    "silu": silu_of,
    "hardswish": _hardswish_of,
}


ACTIVATION_DEPTH = 2
"""The shortest way from an activation's argument to its value, in operations, at most."""


@dataclass(frozen=True)
class Part:
    """One operation of `ir.loops.program.FINISHES`, its second operand, and the value it gives."""

    operation: str
    operand: Scalar | None
    reached: Scalar


def path_from(start: Scalar, root: Scalar) -> list[Part]:
    """The operations from `start` towards `root`, as far as each has one reader and is known.

    Rounding on the way to the type of `start` is left out: it is rounded once, at the end.
    """
    readers: dict[int, list[Scalar]] = defaultdict(list)
    for value in walk(root):
        for operand in operands_of(value):
            readers[id(operand)].append(value)
    path: list[Part] = []
    value = start
    while value is not root:
        part = _next_part(value, readers, start.dtype)
        if part is None:
            break
        if part.operation:
            path.append(part)
        elif path:
            path[-1] = Part(path[-1].operation, path[-1].operand, part.reached)
        value = part.reached
    return path


def _next_part(value: Scalar, readers: dict[int, list[Scalar]], dtype: str) -> Part | None:
    """The next operation; with no name, one that changes nothing."""
    match readers[id(value)]:
        case [Named() as reader]:
            return Part("", None, reader)
        case [Cast(_, to) as reader] if to in ("f32", dtype):
            return Part("", None, reader)
        case [Apply("maximum", (first, Constant(0))) as reader] if first is value:
            return _up_to_six(reader, readers) or Part("relu", None, reader)
        case [Apply("tanh" | "sigmoid" as operation) as reader]:
            return Part(operation, None, reader)
        case [Apply("add" | "mul" as operation, (first, second)) as reader]:
            return Part(operation, second if first is value else first, reader)
        case [Apply("sub", (first, second)) as reader] if first is value:
            return Part("add", -second, reader)
        case [Apply("div", (first, second)) as reader] if first is value:
            return Part("mul", as_scalar(1.0, second.dtype) / second, reader)
    return _activation(value, readers)


def _up_to_six(value: Scalar, readers: dict[int, list[Scalar]]) -> Part | None:
    match readers[id(value)]:
        case [Apply("minimum", (first, Constant(6))) as reader] if first is value:
            return Part("relu6", None, reader)
    return None


def _activation(value: Scalar, readers: dict[int, list[Scalar]]) -> Part | None:
    """An activation that reads its argument several times, recognized by its formula."""
    for reached in _followers(value, readers, depth=ACTIVATION_DEPTH):
        for operation, formula in ACTIVATIONS.items():
            if _is_same(reached, formula(value), value) and _is_only_way(value, reached, readers):
                return Part(operation, None, reached)
    return None


def _is_only_way(value: Scalar, reached: Scalar, readers: dict[int, list[Scalar]]) -> bool:
    """Whether nobody but `reached` needs `value`, or anything between the two."""
    inside, between = {id(each) for each in walk(reached)}, {id(value)}
    for each in walk(reached):
        if any(id(operand) in between for operand in operands_of(each)):
            between.add(id(each))
    return all(id(reader) in inside for each in between - {id(reached)} for reader in readers[each])


def _followers(value: Scalar, readers: dict[int, list[Scalar]], *, depth: int) -> Iterator[Scalar]:
    """What reads a value, and what reads that, up to so many operations away."""
    for reader in readers[id(value)]:
        if isinstance(reader, Apply):
            yield reader
        remaining = depth - isinstance(reader, Apply)
        if remaining and isinstance(reader, Apply | Named):
            yield from _followers(reader, readers, depth=remaining)


def _is_same(first: Scalar, second: Scalar, argument: Scalar) -> bool:
    """Whether two formulas of `argument` are written the same way."""
    first, second = _bare(first, argument), _bare(second, argument)
    match first, second:
        case _ if first is argument or second is argument:
            return first is second
        case Apply(operation, mine, _), Apply(other, others, _):
            return operation == other and all(map(_is_same, mine, others, (argument,) * len(mine)))
        case Constant(value), Constant(other):
            return value == other
    return False


def _bare(value: Scalar, argument: Scalar) -> Scalar:
    while isinstance(value, Named) and value is not argument:
        value = value.value
    return value
