"""Activation functions and their gradients."""

from __future__ import annotations

import math

import torch

from precast.native.loops.buffers import Buffer, contiguous_strides
from precast.native.loops.index import constant, product
from precast.native.loops.scalars import Scalar, apply, as_scalar
from precast.native.rules.builder import Builder
from precast.native.rules.registry import lowering

aten = torch.ops.aten


def _if_positive(condition: Scalar, then: Scalar | float, otherwise: Scalar | float) -> Scalar:
    dtype = condition.dtype
    is_positive = apply("gt", condition, as_scalar(0, dtype))
    return apply("where", is_positive, as_scalar(then, dtype), as_scalar(otherwise, dtype))


@lowering(aten.relu.default)
def relu(builder: Builder, source: Buffer) -> Buffer:
    return builder.pointwise(lambda x: apply("maximum", x, as_scalar(0, x.dtype)), source)


@lowering(aten.threshold_backward.default)
def threshold_backward(builder: Builder, gradient: Buffer, source: Buffer, threshold: float) -> Buffer:
    def formula(dy: Scalar, x: Scalar) -> Scalar:
        is_below = apply("le", x, as_scalar(threshold, x.dtype))
        return apply("where", is_below, as_scalar(0, dy.dtype), dy)

    return builder.pointwise(formula, gradient, source)


@lowering(aten.leaky_relu.default)
def leaky_relu(builder: Builder, source: Buffer, negative_slope: float = 0.01) -> Buffer:
    return builder.pointwise(lambda x: _if_positive(x, x, x * negative_slope), source)


@lowering(aten.leaky_relu_backward.default)
def leaky_relu_backward(builder: Builder, gradient: Buffer, source: Buffer, slope: float, _is_result: bool) -> Buffer:
    return builder.pointwise(lambda dy, x: _if_positive(x, dy, dy * slope), gradient, source)


@lowering(aten.elu.default)
def elu(builder: Builder, source: Buffer, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Buffer:
    def formula(x: Scalar) -> Scalar:
        return _if_positive(x, x * scale, apply("expm1", x * input_scale) * (alpha * scale))

    return builder.pointwise(formula, source)


@lowering(aten.hardtanh.default)
def hardtanh(builder: Builder, source: Buffer, min_val: float = -1, max_val: float = 1) -> Buffer:
    def formula(x: Scalar) -> Scalar:
        return apply("minimum", apply("maximum", x, as_scalar(min_val, x.dtype)), as_scalar(max_val, x.dtype))

    return builder.pointwise(formula, source)


@lowering(aten.silu.default)
def silu(builder: Builder, source: Buffer) -> Buffer:
    return builder.pointwise(silu_of, source)


@lowering(aten.silu_backward.default)
def silu_backward(builder: Builder, gradient: Buffer, source: Buffer) -> Buffer:
    def formula(dy: Scalar, x: Scalar) -> Scalar:
        gate = apply("sigmoid", x)
        return dy * gate * (1.0 + x * (1.0 - gate))

    return builder.pointwise(formula, gradient, source)


@lowering(aten.sigmoid_backward.default)
def sigmoid_backward(builder: Builder, gradient: Buffer, result: Buffer) -> Buffer:
    return builder.pointwise(lambda dy, y: dy * (1.0 - y) * y, gradient, result)


@lowering(aten.tanh_backward.default)
def tanh_backward(builder: Builder, gradient: Buffer, result: Buffer) -> Buffer:
    return builder.pointwise(lambda dy, y: dy * (1.0 - y * y), gradient, result)


@lowering(aten.logit_backward.default)
def logit_backward(builder: Builder, gradient: Buffer, source: Buffer, eps: float | None = None) -> Buffer:
    """Without bounds, infinite at 0 of either sign and at 1, NaN outside; with them, 0 outside, where NaN is not."""

    def formula(dy: Scalar, x: Scalar) -> Scalar:
        low, high = (as_scalar(each, x.dtype) for each in (eps or 0.0, 1.0 - (eps or 0.0)))
        is_outside = apply("logical_or", apply("lt", x, low), apply("gt", x, high))
        slope = dy / (x * (1.0 - x))
        if eps is None:
            is_end = apply("logical_or", apply("eq", x, low), apply("eq", x, high))
            slope = apply("where", is_end, dy * math.inf, slope)
        return apply("where", is_outside, as_scalar(0.0 if eps is not None else math.nan, dy.dtype), slope)

    return builder.pointwise(formula, gradient, source)


@lowering(aten.gelu.default)
def gelu(builder: Builder, source: Buffer, *, approximate: str = "none") -> Buffer:
    if approximate == "none" and source.dtype in ("f32", "bf16") and _is_row_major(source):
        return builder.pointwise(gelu_doubled_of, source)
    return builder.pointwise(lambda x: gelu_of(x, approximate), source)


def _is_row_major(source: Buffer) -> bool:
    pairs = zip(source.shape, source.strides, contiguous_strides(source.shape), strict=True)
    return product(source.shape) != constant(1) and all(
        stride == wanted for size, stride, wanted in pairs if size != constant(1)
    )


@lowering(aten.gelu_backward.default)
def gelu_backward(builder: Builder, gradient: Buffer, source: Buffer, *, approximate: str = "none") -> Buffer:
    return builder.pointwise(lambda dy, x: dy * _gelu_slope(x, approximate), gradient, source)


def silu_of(x: Scalar) -> Scalar:
    return x / (1.0 + apply("exp", -x))


def gelu_of(x: Scalar, approximate: str) -> Scalar:
    return x * _gelu_gate(x, approximate)


def gelu_doubled_of(x: Scalar) -> Scalar:
    """Gelu as eager computes it for contiguous tensors, and as a routine's epilogue does.

    The intermediate is doubled, which may overflow to infinity, and an infinite intermediate yields NaN.
    """
    return x * (1.0 + apply("erf", x * math.sqrt(0.5))) * 0.5 + 0.0 * x


def _gelu_gate(x: Scalar, approximate: str) -> Scalar:
    """The factor of gelu's argument: the normal distribution function, or its approximation by tanh."""
    if approximate == "none":
        return 0.5 * (1.0 + apply("erf", x * math.sqrt(0.5)))
    return 0.5 * (1.0 + _gelu_tanh(x))


def _gelu_slope(x: Scalar, approximate: str) -> Scalar:
    gate = _gelu_gate(x, approximate)
    if approximate == "none":
        return gate + x * (apply("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))
    tanh, inner_slope = _gelu_tanh(x), math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * (x * x))
    return gate + 0.5 * x * ((1.0 - tanh * tanh) * inner_slope)


def _gelu_tanh(x: Scalar) -> Scalar:
    return apply("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))
