"""Rules that decompose complex operators: one function for each, over real and imaginary parts.

A rule takes a `Written`, which knows the operator's result, then the operator's arguments: complex tensors as `Pair`,
real ones as `Real`, everything else as in the graph. It returns either, or None if it does not support the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from precast.native.graph_passes.complex_values import Number, Pair, Real, Written, pair, real_type
from precast.ops.own_operators import fft, fft_of_real, fft_to_real

aten = torch.ops.aten
Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
"""Rules whose code is as fast as torch's, or faster, since it fuses."""
ALONE: dict[Any, Rule] = {}
"""Rules that only programs without torch need."""


def rule(*operators: Any, table: dict[Any, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register a rule; a second one for the same operator is an error."""

    def register(made: Rule) -> Rule:
        for each in operators:
            assert each not in table, f"{each} has a rule already"
            table[each] = made
        return made

    return register


def each_part(*operators: Any) -> None:
    """Register operators that apply to both parts separately."""
    for operator in operators:
        rule(operator)(partial(_each_part, operator))


def _part_of_real(writer: Written, operand: Real, number: int) -> Real:
    """A part of a real operand; integers and bools are indices or masks, and apply to both parts."""
    if not operand.value.is_floating_point():
        return operand
    real = operand.to(writer.dtype)
    return real.of(aten.zeros_like.default) if number else real


def _each_part(operator: Any, writer: Written, *args: Any, **options: Any) -> Pair | None:
    if options.get("dtype") is not None:
        options["dtype"] = real_type(options["dtype"])
    values: list[Any] = []
    for number in (0, 1):

        def part(argument: Any, number: int = number) -> Any:
            if isinstance(argument, Pair):
                return writer.parts(argument)[number].node
            if isinstance(argument, Real):
                return _part_of_real(writer, argument, number).node
            return [part(each) for each in argument] if isinstance(argument, list) else argument

        values.append(Real(writer.call(operator, *map(part, args), **options), writer.call))
    return pair(*values)


each_part(
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cat.default, aten.flip.default,
    aten.roll.default, aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.diagonal.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.repeat.default, aten.tril.default,
    aten.triu.default, aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.replication_pad1d.default,
    aten.cumsum.default, aten.select_scatter.default, aten.slice_scatter.default, aten.index_put.default,
    aten.t.default, aten.alias.default, aten.detach.default, aten.unfold.default,
)  # fmt: skip


@rule(aten.neg.default)
def negated(writer: Written, x: Pair) -> Pair:
    return pair(-x.real, -x.imaginary)


@rule(aten.clone.default, aten._to_copy.default, aten.resolve_conj.default, aten.lift_fresh_copy.default)
def copied(writer: Written, x: Pair | Real, dtype: torch.dtype | None = None, **_: Any) -> Pair | Real | None:
    if not writer.result.is_complex():
        return x.real.to(writer.dtype) if isinstance(x, Pair) else None
    if isinstance(x, Pair):
        return x if x.apart is None and x.both.value.dtype is writer.dtype else pair(*writer.parts(x))
    return writer.pair(*writer.parts(x))


@rule(aten.copy.default)
def copied_over(writer: Written, x: Pair | Real, y: Pair | Real, non_blocking: bool = False) -> Pair | Real:
    if not writer.result.is_complex():
        real = y.real if isinstance(y, Pair) else y
        return real.to(writer.dtype).expand(writer.result.shape)
    return writer.pair(*writer.parts(y))


@rule(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def conjugated(writer: Written, x: Pair) -> Pair:
    return pair(x.real, -x.imaginary)


@rule(aten._neg_view.default)
def negated_view(writer: Written, x: Pair | Real) -> Pair | Real:
    return pair(-x.real, -x.imaginary) if isinstance(x, Pair) else -x


@rule(aten.resolve_neg.default)
def resolved(writer: Written, x: Pair | Real) -> Pair | Real:
    return x if isinstance(x, Pair) else x.of(aten.clone.default)


@rule(aten.view_as_real.default)
def as_real(writer: Written, x: Pair) -> Real:
    return x.both


@rule(aten.view_as_complex.default)
def as_complex(writer: Written, x: Real) -> Pair:
    return Pair(x)


@rule(aten.complex.default)
def complex_of(writer: Written, real: Real, imaginary: Real) -> Pair:
    return writer.pair(real, imaginary)


@rule(aten.polar.default)
def polar(writer: Written, size: Real, angle: Real) -> Pair:
    return writer.pair(size * angle.of(aten.cos.default), size * angle.of(aten.sin.default))


# Views, which keep the last dimension last.


@rule(aten.view.default, aten._unsafe_view.default)
def viewed(writer: Written, x: Pair, shape: Sequence[Any]) -> Pair:
    return x.contiguous().reshaped(aten.view.default, shape)


@rule(aten.expand.default)
def expanded(writer: Written, x: Pair, shape: Sequence[Any], **_: Any) -> Pair:
    return x.reshaped(aten.expand.default, shape)


@rule(aten.permute.default)
def permuted(writer: Written, x: Pair, dims: Sequence[int]) -> Pair:
    return x.reshaped(aten.permute.default, [dim % x.rank for dim in dims])


@rule(aten.transpose.int)
def transposed(writer: Written, x: Pair, first: int, second: int) -> Pair:
    return x.viewed(aten.transpose.int, first % x.rank, second % x.rank) if x.rank else x


@rule(aten.unsqueeze.default)
def unsqueezed(writer: Written, x: Pair, dim: int) -> Pair:
    return x.viewed(aten.unsqueeze.default, dim % (x.rank + 1))


@rule(aten.select.int)
def selected(writer: Written, x: Pair, dim: int, index: Any) -> Pair:
    return x.viewed(aten.select.int, dim % x.rank, index)


@rule(aten.slice.Tensor)
def sliced(writer: Written, x: Pair, dim: int = 0, *bounds: Any) -> Pair:
    return x.viewed(aten.slice.Tensor, dim % x.rank, *bounds)


@rule(aten.as_strided.default)
def strided(writer: Written, x: Pair, size: Sequence[Any], strides: Sequence[Any], offset: Any = None) -> Pair | None:
    if not x.both.value.is_contiguous() or any(isinstance(each, fx.Node) for each in (*strides, offset)):
        return None
    doubled = [*(stride * 2 for stride in strides), 1]
    return Pair(x.both.of(aten.as_strided.default, [*size, 2], doubled, (offset or 0) * 2))


# Arithmetic, with eager's formulas.


@rule(aten.add.Tensor)
def added(writer: Written, x: Any, y: Any, alpha: Number = 1) -> Pair:
    (a, b), (c, d) = writer.parts(x), _times(writer.parts(y), writer.parts(alpha)) if alpha != 1 else writer.parts(y)
    return writer.pair(a + c, b + d)


@rule(aten.sub.Tensor)
def subtracted(writer: Written, x: Any, y: Any, alpha: Number = 1) -> Pair:
    (a, b), (c, d) = writer.parts(x), _times(writer.parts(y), writer.parts(alpha)) if alpha != 1 else writer.parts(y)
    return writer.pair(a - c, b - d)


@rule(aten.mul.Tensor)
def multiplied(writer: Written, x: Any, y: Any) -> Pair:
    return writer.pair(*_times(writer.parts(x), writer.parts(y)))


def _times(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    (a, b), (c, d) = one, other
    return a * c - b * d, a * d + b * c


@rule(aten.div.Tensor)
def divided(writer: Written, x: Any, y: Any) -> Pair:
    a, b = writer.parts(x)
    if not isinstance(y, Pair | Real):
        y = complex(y)
        return writer.pair(a / y.real, b / y.real) if y.imag == 0 else writer.pair(*_times((a, b), _inverse(y)))
    return writer.pair(*_quotient((a, b), writer.parts(y)))


def _inverse(number: complex) -> tuple[float, float]:
    inverse = 1 / number
    return inverse.real, inverse.imag


def _quotient(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """Divide by the larger part of the divisor first, so that no square overflows."""
    (a, b), (c, d) = one, other
    if not isinstance(d, Real):
        return a / c, b / c
    is_first = c.of(aten.abs.default).of(aten.ge.Tensor, d.of(aten.abs.default))

    def choose(yes: Real, no: Real) -> Real:
        return Real(c.call(aten.where.self, is_first.node, yes.node, no.node), c.call)

    large, small = choose(c, d), choose(d, c)
    both_are_zero = large.of(aten.eq.Scalar, 0)
    ratio = small / large
    # 0 / 0 would make the whole quotient NaN where eager returns infinities.
    ratio = Real(c.call(aten.where.self, both_are_zero.node, small.node, ratio.node), c.call)
    scale = large + small * ratio
    first = a if isinstance(a, Real) else c.of(aten.full_like.default, a)
    second = b if isinstance(b, Real) else first.of(aten.full_like.default, b)
    shape = torch.broadcast_shapes(first.value.shape, c.value.shape)
    first, second = first.expand(shape), second.expand(shape)
    real = _where(is_first, first + second * ratio, first * ratio + second)
    imaginary = _where(is_first, second - first * ratio, second * ratio - first)
    return real / scale, imaginary / scale


def _where(condition: Real, yes: Real, no: Real) -> Real:
    return Real(yes.call(aten.where.self, condition.node, yes.node, no.node), yes.call)


@rule(aten.reciprocal.default)
def inverted(writer: Written, x: Pair) -> Pair:
    return writer.pair(*_quotient((1.0, 0.0), writer.parts(x)))


@rule(aten.abs.default)
def absolute(writer: Written, x: Pair) -> Real:
    """Scaled by the larger part, so that no square overflows; infinite if either part is, like `hypot`."""
    a, b = (each.of(aten.abs.default) for each in (x.real, x.imaginary))
    large, small = a.of(aten.maximum.default, b), a.of(aten.minimum.default, b)
    is_plain = large.of(aten.gt.Scalar, 0)
    ratio = small / large
    zero = ratio.of(aten.zeros_like.default)
    ratio = Real(a.call(aten.where.self, is_plain.node, ratio.node, zero.node), a.call)
    length = large * (ratio * ratio + 1.0).of(aten.sqrt.default)
    infinite = large.of(aten.full_like.default, math.inf)
    is_infinite = a.of(aten.eq.Scalar, math.inf).of(aten.logical_or.default, b.of(aten.eq.Scalar, math.inf))
    return Real(a.call(aten.where.self, is_infinite.node, infinite.node, length.node), a.call)


@rule(aten.angle.default)
def angle(writer: Written, x: Pair) -> Real | None:
    return x.imaginary.of(aten.atan2.default, x.real) if isinstance(x, Pair) else None


@rule(aten.exp.default)
def exponential(writer: Written, x: Pair) -> Pair:
    size = x.real.of(aten.exp.default)
    return pair(size * x.imaginary.of(aten.cos.default), size * x.imaginary.of(aten.sin.default))


@rule(aten.log.default)
def logarithm(writer: Written, x: Pair) -> Pair:
    return pair(absolute(writer, x).of(aten.log.default), x.imaginary.of(aten.atan2.default, x.real))


@rule(aten.sgn.default)
def direction(writer: Written, x: Pair) -> Pair:
    size = absolute(writer, x)
    is_zero, one = size.of(aten.eq.Scalar, 0), size.of(aten.ones_like.default)
    divisor = Real(size.call(aten.where.self, is_zero.node, one.node, size.node), size.call)
    return pair(x.real / divisor, x.imaginary / divisor)


_MOST_FACTORS = 16


@rule(aten.pow.Tensor_Scalar)
def power(writer: Written, x: Pair, exponent: Number) -> Pair | None:
    """Small integer powers, as products."""
    if isinstance(exponent, complex) or exponent != int(exponent) or not 0 < exponent <= _MOST_FACTORS:
        return None
    factor = writer.parts(x)
    result: tuple[Any, Any] | None = None
    for bit in reversed(bin(int(exponent))[2:]):
        if bit == "1":
            result = factor if result is None else _times(result, factor)
        factor = _times(factor, factor)
    assert result is not None
    return writer.pair(*result)


@rule(aten.eq.Tensor, aten.eq.Scalar)
def equal(writer: Written, x: Any, y: Any) -> Real:
    real, imaginary = _compared(x, y)
    return real.of(aten.logical_and.default, imaginary)


@rule(aten.ne.Tensor, aten.ne.Scalar)
def unequal(writer: Written, x: Any, y: Any) -> Real:
    real, imaginary = _compared(x, y)
    return real.of(aten.logical_and.default, imaginary).of(aten.logical_not.default)


def _compared(x: Any, y: Any) -> list[Real]:
    x, y = (x, y) if isinstance(x, Pair) else (y, x)
    if isinstance(y, Pair):
        return [x.real.of(aten.eq.Tensor, y.real), x.imaginary.of(aten.eq.Tensor, y.imaginary)]
    if isinstance(y, Real):
        return [x.real.of(aten.eq.Tensor, y), x.imaginary.of(aten.eq.Scalar, 0)]
    return [x.real.of(aten.eq.Scalar, complex(y).real), x.imaginary.of(aten.eq.Scalar, complex(y).imag)]


@rule(aten.where.self)
def chosen(writer: Written, condition: Real, x: Any, y: Any) -> Pair:
    shape = writer.result.shape
    sides = [[writer.whole(part).expand(shape) for part in writer.parts(each)] for each in (x, y)]
    return pair(*(_where(condition, yes, no) for yes, no in zip(*sides, strict=True)))


@rule(aten.constant_pad_nd.default)
def padded(writer: Written, x: Pair, pads: Sequence[Any], value: Number = 0) -> Pair:
    numbers = complex(value)
    return pair(
        x.real.of(aten.constant_pad_nd.default, pads, numbers.real),
        x.imaginary.of(aten.constant_pad_nd.default, pads, numbers.imag),
    )


def _filled(operator: Any, number: Callable[..., Number]) -> None:
    """Register a factory function that fills a tensor with one number."""

    def fill(writer: Written, *args: Any, **_: Any) -> Pair | None:
        value = number(*args)
        if isinstance(value, fx.Node | Real | Pair) or not writer.result.is_complex():
            return None
        return pair(writer.full(complex(value).real), writer.full(complex(value).imag))

    rule(operator)(fill)


_filled(aten.full.default, lambda shape, value: value)
_filled(aten.full_like.default, lambda like, value: value)
_filled(aten.scalar_tensor.default, lambda value: value)
for _operator, _number in (
    (aten.zeros.default, 0), (aten.ones.default, 1), (aten.zeros_like.default, 0), (aten.ones_like.default, 1),
    (aten.empty.memory_format, 0), (aten.empty_like.default, 0),
):  # fmt: skip
    _filled(_operator, lambda *_, number=_number: number)


# Products.


@rule(aten.mm.default, aten.bmm.default)
def product(writer: Written, left: Pair, right: Pair) -> Pair:
    return _product(writer, left, right)


def _product(writer: Written, left: Pair, right: Pair) -> Pair:
    """One real GEMM: rows of interleaved parts times a matrix in which each number is a 2×2 rotation.

    ``[a b] @ [[c d], [-d c]]`` for each pair of numbers.
    """
    *batch, rows, inner = left.shape
    columns = right.shape[-1]
    flat = left.both.of(aten.clone.default, memory_format=torch.contiguous_format)
    flat = flat.of(aten.view.default, [*batch, rows, inner * 2])
    turned = pair(-right.imaginary, right.real).both
    apart = [each.of(aten.unsqueeze.default, len(batch) + 1).node for each in (right.both, turned)]
    matrix = Real(writer.call(aten.cat.default, apart, len(batch) + 1), writer.call)
    matrix = matrix.of(aten.clone.default, memory_format=torch.contiguous_format)
    matrix = matrix.of(aten.view.default, [*batch, inner * 2, columns * 2])
    found = flat.of(aten.bmm.default if batch else aten.mm.default, matrix)
    return Pair(found.of(aten.view.default, [*batch, rows, columns, 2]))


@rule(aten.addmm.default, aten.baddbmm.default)
def product_and_sum(writer: Written, x: Pair, left: Pair, right: Pair, beta: Number = 1, alpha: Number = 1) -> Pair:
    found = _product(writer, left, right)
    parts = _times(writer.parts(found), writer.parts(alpha)) if alpha != 1 else writer.parts(found)
    others = _times(writer.parts(x), writer.parts(beta)) if beta != 1 else writer.parts(x)
    return writer.pair(parts[0] + others[0], parts[1] + others[1])


@rule(aten.mv.default)
def matrix_by_vector(writer: Written, left: Pair, right: Pair) -> Pair:
    column = right.viewed(aten.unsqueeze.default, 1)
    return _product(writer, left, column).viewed(aten.select.int, 1, 0)


@rule(aten.dot.default, aten.vdot.default)
def inner_product(writer: Written, left: Pair, right: Pair) -> Pair:
    is_conjugate = writer.operator is aten.vdot.default
    first = pair(left.real, -left.imaginary) if is_conjugate else left
    real, imaginary = _times(writer.parts(first), writer.parts(right))
    return pair(real.of(aten.sum.default), imaginary.of(aten.sum.default))


# Fourier transforms.


@rule(aten._fft_r2c.default, table=ALONE)
def transform_of_real(writer: Written, x: Real, dims: Sequence[int], normalization: int, is_half: bool) -> Pair:
    places = [dim % x.value.ndim for dim in dims]
    if is_half:
        return Pair(x.of(fft_of_real, places, normalization))
    return Pair(pair(x, x.of(aten.zeros_like.default)).both.of(fft, places, normalization, True))


@rule(aten._fft_c2c.default, table=ALONE)
def transform(writer: Written, x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    return Pair(x.both.of(fft, [dim % x.rank for dim in dims], normalization, forward)) if dims else x


@rule(aten._fft_c2r.default, table=ALONE)
def transform_to_real(writer: Written, x: Pair, dims: Sequence[int], normalization: int, size: Any) -> Real:
    return x.both.of(fft_to_real, [dim % x.rank for dim in dims], normalization, size)
