"""Elementwise operators: one named operation, or one formula, each."""

from __future__ import annotations

import math

import torch

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.scalars import Scalar, apply
from precast.lower.builder import Builder, Operand
from precast.lower.registry import lowering

aten = torch.ops.aten


@lowering(aten.add.Tensor)
def add(builder: Builder, left: Buffer, right: Operand, *, alpha: float = 1) -> Buffer:
    return builder.pointwise(lambda a, b: a + (b if alpha == 1 else b * alpha), left, right)


@lowering(aten.mul.Tensor)
def mul(builder: Builder, left: Buffer, right: Operand) -> Buffer:
    return builder.pointwise(lambda a, b: a * b, left, right)


@lowering(aten.gelu.default)
def gelu(builder: Builder, source: Buffer, *, approximate: str = "none") -> Buffer:
    return builder.pointwise(lambda x: x * _gelu_gate(x, approximate), source)


@lowering(aten.gelu_backward.default)
def gelu_backward(builder: Builder, gradient: Buffer, source: Buffer, *, approximate: str = "none") -> Buffer:
    return builder.pointwise(lambda dy, x: dy * _gelu_slope(x, approximate), gradient, source)


def _gelu_gate(x: Scalar, approximate: str) -> Scalar:
    """What gelu multiplies its argument by: the normal distribution, or its approximation by tanh."""
    if approximate == "none":
        return 0.5 * (1.0 + apply("erf", x * math.sqrt(0.5)))
    return 0.5 * (1.0 + apply("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def _gelu_slope(x: Scalar, approximate: str) -> Scalar:
    gate = _gelu_gate(x, approximate)
    if approximate == "none":
        return gate + x * (apply("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))
    # With gate = (1 + tanh u) / 2, the slope of tanh u is 4·gate·(1 − gate)·u'.
    inner_slope = math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * (x * x))
    return gate + x * (2.0 * gate * (1.0 - gate) * inner_slope)
