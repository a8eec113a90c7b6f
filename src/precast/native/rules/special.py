"""Special functions: Bessel's, orthogonal polynomials, gamma's relatives, quantiles."""

from __future__ import annotations

import math

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.scalars import SPECIAL_BINARY, SPECIAL_UNARY, Scalar, apply, as_scalar
from precast.native.rules.builder import Builder, Operand, is_floating
from precast.native.rules.registry import Rule, lowering

aten = torch.ops.aten

# Special functions whose operators have other names.
_OPERATORS = {"erfinv": "erfinv", "exp2": "exp2", "i0": "i0", "gammainc": "igamma", "gammaincc": "igammac"}
_SAME = {"special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "i1"}


def _overloads(name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(aten, name)
    return [getattr(packet, each) for each in packet.overloads() if each in ("default", "x_scalar", "n_scalar",
                                                                            "self_scalar", "other_scalar")]  # fmt: skip


def _rule(function: str) -> Rule:
    def rule(builder: Builder, *operands: Operand) -> Buffer:
        return builder.pointwise(lambda *values: apply(function, *values), *operands)

    rule.__name__ = function
    return rule


for _function in (*SPECIAL_UNARY, *SPECIAL_BINARY):
    lowering(*_overloads(_OPERATORS.get(_function, f"special_{_function}")))(_rule(_function))
for _operator, _function in _SAME.items():
    lowering(*_overloads(_operator))(_rule(_function))


def _shifted_rule(function: str) -> Rule:
    def rule(builder: Builder, source: Operand, degree: Operand) -> Buffer:
        return builder.pointwise(lambda x, n: apply(function, x + x - 1.0, n), source, degree)

    rule.__name__ = f"shifted_{function}"
    return rule


for _kind in "tuvw":
    _function = f"chebyshev_polynomial_{_kind}"
    lowering(*_overloads(f"special_shifted_{_function}"))(_shifted_rule(_function))


@lowering(aten.polygamma.default)
def polygamma(builder: Builder, order: int, source: Buffer) -> Buffer:
    if order < 2:
        return builder.pointwise(lambda x: apply("trigamma" if order else "digamma", x), source)
    factor = math.factorial(order) * (1.0 if order % 2 else -1.0)
    return builder.pointwise(lambda x: apply("zeta", as_scalar(order + 1.0, x.dtype), x) * factor, source)


@lowering(aten.round.decimals)
def round_to(builder: Builder, source: Buffer, *, decimals: int) -> Buffer:
    if not is_floating(source.dtype) or decimals == 0:
        return builder.pointwise(lambda x: apply("round", x), source)
    power = 10.0 ** abs(decimals)
    if decimals > 0:
        return builder.pointwise(lambda x: apply("round", x * power) / power, source)
    return builder.pointwise(lambda x: apply("round", x / power) * power, source)


@lowering(aten.signbit.default)
def signbit(builder: Builder, source: Buffer) -> Buffer:
    def formula(value: Scalar) -> Scalar:
        if is_floating(value.dtype):
            value = apply("copysign", as_scalar(1, value.dtype), value)
        return apply("lt", value, as_scalar(0, value.dtype))

    return builder.pointwise(formula, source, compute=source.dtype)


@lowering(aten.angle.default)
def angle(builder: Builder, source: Buffer) -> Buffer:
    """0 for positive numbers, π for negative ones, NaN for NaN."""

    def formula(x: Scalar) -> Scalar:
        turned = apply("where", apply("lt", x, as_scalar(0, x.dtype)), as_scalar(math.pi, x.dtype),
                       as_scalar(0, x.dtype))  # fmt: skip
        return apply("where", apply("is_nan", x), x, turned)

    return builder.pointwise(formula, source)


def _ignoring_nan(operation: str) -> Rule:
    def rule(builder: Builder, left: Operand, right: Operand) -> Buffer:
        def formula(a: Scalar, b: Scalar) -> Scalar:
            if not is_floating(a.dtype):
                return apply(operation, a, b)
            both = apply(operation, a, b)
            return apply("where", apply("is_nan", a), b, apply("where", apply("is_nan", b), a, both))

        return builder.pointwise(formula, left, right)

    rule.__name__ = f"{operation}_ignoring_nan"
    return rule


lowering(aten.fmax.default)(_ignoring_nan("maximum"))
lowering(aten.fmin.default)(_ignoring_nan("minimum"))


@lowering(aten._efficientzerotensor.default)
def zero_tensor(builder: Builder, *_: object, **__: object) -> Buffer:
    return builder.define(lambda at: as_scalar(0, builder.result.dtype))


def _shrink_backward(builder: Builder, gradient: Buffer, source: Buffer, limit: float) -> Buffer:
    """The gradient is 0 where the function was."""

    def formula(dy: Scalar, x: Scalar) -> Scalar:
        is_zero = apply(
            "logical_and", apply("ge", x, as_scalar(-limit, x.dtype)), apply("le", x, as_scalar(limit, x.dtype))
        )
        return apply("where", is_zero, as_scalar(0, dy.dtype), dy)

    return builder.pointwise(formula, gradient, source)


lowering(aten.hardshrink_backward.default, aten.softshrink_backward.default)(_shrink_backward)
