"""Elementwise operators: each is one named operation or a short formula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index
from precast.native.loops.scalars import BINARY, PREDICATES, Constant, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Operand, element, is_floating, promoted_dtype
from precast.native.rules.conditions import refuse_any, refuse_zero
from precast.native.rules.registry import DECLINED, Declined, Rule, lowering
from precast.ops.own_operators import checked

aten = torch.ops.aten

# ATen's name → the operation, where they differ.
_RENAMED = {
    "isinf": "is_inf", "isnan": "is_nan", "special_erfc": "erfc",
    "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift",
}  # fmt: skip
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "digamma", "erf",
    "erfc", "exp", "expm1", "floor", "isinf", "isnan", "lgamma", "log", "log10", "log1p", "log2", "logical_not", "neg",
    "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_BINARY = (
    "__lshift__", "__rshift__", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "copysign", "eq", "fmod", "ge", "gt", "hypot", "le", "logical_and", "logical_or", "logical_xor",
    "lt", "maximum", "minimum", "mul", "ne", "nextafter", "remainder",
)  # fmt: skip


def _overloads(name: str) -> list[OpOverload]:
    """The functional forms of an operator that take tensors, or tensors and numbers."""
    packet = getattr(aten, name)
    kept = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    return [getattr(packet, overload) for overload in packet.overloads() if overload in kept]


def _named_rule(operation: str) -> Rule:
    def rule(builder: Builder, *operands: Operand) -> Buffer | Declined:
        if operation == "nextafter" and promoted_dtype(operands) in ("bf16", "f16"):
            # Loops compute in float32, which has other numbers next to these.
            return DECLINED
        # Comparisons return bool, so the type to compute in comes from the arguments; otherwise it is the result's.
        compute = promoted_dtype(operands) if operation in PREDICATES else ""
        if operation.startswith("logical"):
            return builder.pointwise(lambda *values: apply(operation, *(cast(value, "bool") for value in values)),
                                     *operands, compute=compute)  # fmt: skip
        if operation in ("fmod", "remainder"):
            refuse_zero(builder, operands[1])
        # Eager multiplies by the number itself, and converts it to the tensor's type for the others.
        rounds = operation != "mul"
        return builder.pointwise(
            lambda *values: apply(operation, *values), *operands, compute=compute, rounds_operands=rounds
        )

    rule.__name__ = operation
    return rule


for _name in (*_UNARY, *_BINARY):
    _operation = _RENAMED.get(_name, _name)
    assert _operation in BINARY or _name in _UNARY, f"no operation {_operation}"
    lowering(*_overloads(_name))(_named_rule(_operation))


def _rounded_to(value: Scalar, dtype: str) -> Scalar:
    return cast(cast(value, dtype, is_asked=True), value.dtype)


def _scaled(value: Scalar, factor: float) -> Scalar:
    return value if factor == 1 else value * factor


def _sum(builder: Builder, formula: Callable[[Scalar, Scalar], Scalar], left: Operand, right: Operand) -> Buffer:
    """Eager's kernels for CPUs convert numbers to the tensor's type first; those for GPUs add them as they are."""
    return builder.pointwise(formula, left, right, rounds_operands=builder.follows_cpu)


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(builder: Builder, left: Operand, right: Operand, alpha: float = 1) -> Buffer:
    return _sum(builder, lambda a, b: a + _scaled(b, alpha), left, right)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(builder: Builder, left: Operand, right: Operand, alpha: float = 1) -> Buffer:
    return _sum(builder, lambda a, b: a - _scaled(b, alpha), left, right)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(builder: Builder, left: Operand, right: Operand, alpha: float = 1) -> Buffer:
    return _sum(builder, lambda a, b: b - _scaled(a, alpha), left, right)


@lowering(aten.addcmul.default)
def addcmul(builder: Builder, source: Buffer, first: Buffer, second: Buffer, *, value: float = 1) -> Buffer:
    return builder.pointwise(lambda x, a, b: x + _scaled(a, value) * b, source, first, second)


@lowering(aten.addcdiv.default)
def addcdiv(builder: Builder, source: Buffer, first: Buffer, second: Buffer, *, value: float = 1) -> Buffer:
    return builder.pointwise(lambda x, a, b: x + _scaled(a, value) / b, source, first, second)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(builder: Builder, start: Buffer, end: Buffer, weight: Operand) -> Buffer:
    def formula(a: Scalar, b: Scalar, w: Scalar) -> Scalar:
        # From the nearer end, so that a weight of 1 returns exactly that end.
        near = a + w * (b - a)
        far = b - (b - a) * (1.0 - w)
        return apply("where", apply("lt", apply("abs", w), as_scalar(0.5, w.dtype)), near, far)

    return builder.pointwise(formula, start, end, weight)


@lowering(aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(builder: Builder, left: Operand, right: Operand, rounding_mode: str | None = None) -> Buffer:
    operation = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}[rounding_mode]
    refuse_zero(builder, right)
    stored = builder.result.dtype
    if operation == "div_trunc" and stored in ("bf16", "f16") and isinstance(right, Buffer) and right.shape:
        # Eager rounds the quotient of two such tensors before it drops the fraction.
        return builder.pointwise(lambda a, b: apply("trunc", _rounded_to(a / b, stored)), left, right)
    return builder.pointwise(lambda a, b: apply(operation, a, b), left, right)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(builder: Builder, left: Operand, right: Operand) -> Buffer:
    refuse_zero(builder, right)
    return builder.pointwise(lambda a, b: apply("div_floor", a, b), left, right)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, aten.pow.Tensor_Scalar)
def pow_(builder: Builder, base: Operand, exponent: Operand) -> Buffer:
    short: dict[float, Callable[[Scalar], Scalar]] = {
        1: lambda x: x,
        2: lambda x: x * x,
        3: lambda x: x * x * x,
        0.5: lambda x: apply("sqrt", x),
        -0.5: lambda x: apply("rsqrt", x),
        -1: lambda x: apply("reciprocal", x),
        -2: lambda x: apply("reciprocal", x * x),
    }
    is_whole = not is_floating(builder.result.dtype)
    if isinstance(exponent, int | float) and exponent in short and not (is_whole and exponent < 1):
        return builder.pointwise(short[exponent], base)
    return builder.pointwise(lambda x, y: apply("pow", x, y), base, exponent, rounds_operands=True)


@lowering(aten.threshold.default)
def threshold(builder: Builder, source: Buffer, threshold: float, value: float) -> Buffer:
    return builder.pointwise(
        lambda x, limit, other: apply("where", apply("le", x, limit), other, x), source, threshold, value
    )


@lowering(aten.where.self)
def where(builder: Builder, condition: Buffer, then: Operand, otherwise: Operand) -> Buffer:
    dtype = builder.result.dtype
    return builder.define(
        lambda at: apply("where", *(element(each, at, kind) for each, kind in
                                    ((condition, "bool"), (then, dtype), (otherwise, dtype))))
    )  # fmt: skip


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(builder: Builder, source: Buffer, mask: Buffer, value: Operand) -> Buffer:
    return where(builder, mask, value, source)


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(builder: Builder, source: Buffer, min: Operand | None = None, max: Operand | None = None) -> Buffer:
    bounds = [("maximum", min), ("minimum", max)]
    given = [(operation, bound) for operation, bound in bounds if bound is not None]

    def formula(value: Scalar, *limits: Scalar) -> Scalar:
        for (operation, _), limit in zip(given, limits, strict=True):
            value = apply(operation, value, limit)
        return value

    return builder.pointwise(formula, source, *(bound for _, bound in given))


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(builder: Builder, source: Buffer, min: Operand) -> Buffer:
    return builder.pointwise(lambda x, low: apply("maximum", x, low), source, min)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(builder: Builder, source: Buffer, max: Operand) -> Buffer:
    return builder.pointwise(lambda x, high: apply("minimum", x, high), source, max)


@lowering(
    aten._to_copy.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.copy.default,
    aten.lift_fresh_copy.default,
)
def copy(builder: Builder, *sources: Operand, **_: object) -> Buffer:
    # `copy` takes (target, source, non_blocking); the others take only the source, which under `vmap` may be a number.
    source = next((each for each in reversed(sources) if isinstance(each, Buffer)), sources[0])
    dtype = source.dtype if isinstance(source, Buffer) else builder.result.dtype
    return builder.define(lambda at: cast(element(source, at, dtype), builder.result.dtype, is_asked=True))


@lowering(
    aten.full.default, aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor, aten.scalar_tensor.default,
    aten.new_full.default,
)  # fmt: skip
def full(builder: Builder, *arguments: Operand, **_: object) -> Buffer:
    value = arguments[-1]
    return builder.define(lambda at: element(value, at, builder.result.dtype))


@lowering(
    aten.zeros.default, aten.zeros_like.default, aten.empty.memory_format, aten.empty_like.default,
    aten.empty_strided.default, aten.empty_permuted.default, aten.new_zeros.default, aten.new_empty.default,
    aten.new_empty_strided.default,
)  # fmt: skip
def zeros(builder: Builder, *_: object, **__: object) -> Buffer:
    return builder.define(lambda at: element(0, at, builder.result.dtype))


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(builder: Builder, *_: object, **__: object) -> Buffer:
    return builder.define(lambda at: element(1, at, builder.result.dtype))


@lowering(aten.arange.default)
def arange_to(builder: Builder, end: float | Index, **_: object) -> Buffer:
    return arange(builder, 0, end)


@lowering(aten.arange.start, aten.arange.start_step)
def arange(builder: Builder, start: float | Index, end: float | Index, step: float | Index = 1, **_: object) -> Buffer:
    dtype = "f64" if is_floating(builder.result.dtype) else "i64"
    return builder.define(lambda at: element(start, at, dtype) + element(at[0], at, dtype) * element(step, at, dtype))


@lowering(aten._assert_async.msg)
def assert_async(builder: Builder, condition: Buffer, message: str) -> tuple[Buffer, ...]:
    refuse_any(builder, condition, lambda each: apply("eq", each, Constant(0, each.dtype)), message)
    return ()


@lowering(checked)
def checked_value(builder: Builder, value: Buffer, is_wrong: Buffer, error: str, message: str) -> Buffer:
    refuse_any(builder, is_wrong, lambda each: each, message, error=error)
    return builder.pointwise(lambda each: each, value)
