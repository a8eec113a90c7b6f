"""Real and complex tensors of a graph under construction, with operators, so that rules read as formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from precast.graph.nodes import value_of
from precast.ops.cost import size_hint
from precast.ops.own_operators import joined

aten = torch.ops.aten
Number = complex | float | int
_DENSE = {"memory_format": torch.contiguous_format}


@dataclass(frozen=True)
class Real:
    """A real tensor of the graph under construction."""

    node: fx.Node
    call: Callable[..., fx.Node]

    @property
    def value(self) -> torch.Tensor:
        value = value_of(self.node)
        assert isinstance(value, torch.Tensor)
        return value

    def of(self, target: Any, *args: Any, **options: Any) -> Real:
        """Apply an operator to this tensor and other arguments."""
        plain = [each.node if isinstance(each, Real) else each for each in args]
        return Real(self.call(target, self.node, *plain, **options), self.call)

    def __mul__(self, other: Real | float) -> Real:
        return self.of(aten.mul.Tensor, other)

    __rmul__ = __mul__

    def __add__(self, other: Real | float) -> Real:
        return self.of(aten.add.Tensor, other)

    __radd__ = __add__

    def __sub__(self, other: Real | float) -> Real:
        return self.of(aten.sub.Tensor, other)

    def __rsub__(self, other: float) -> Real:
        return -self + other

    def __truediv__(self, other: Real | float) -> Real:
        return self.of(aten.div.Tensor, other)

    def __neg__(self) -> Real:
        return self.of(aten.neg.default)

    def to(self, dtype: torch.dtype) -> Real:
        return self if self.value.dtype is dtype else self.of(aten._to_copy.default, dtype=dtype)

    def expand(self, shape: Sequence[Any]) -> Real:
        return self if tuple(self.value.shape) == tuple(shape) else self.of(aten.expand.default, list(shape))


Part = Real | float


@dataclass(frozen=True)
class Pair:
    """A complex tensor: its parts, separate or stacked along a last dimension; either form is made on demand."""

    together: Real | None = None
    apart: tuple[Real, Real] | None = None

    @cached_property
    def both(self) -> Real:
        if self.together is not None:
            return self.together
        assert self.apart is not None
        return self.apart[0].of(joined, self.apart[1])

    @cached_property
    def parts(self) -> tuple[Real, Real]:
        if self.apart is not None:
            return self.apart
        real, imaginary = (self.both.of(aten.select.int, self.rank, number) for number in (0, 1))
        return real, imaginary

    @property
    def real(self) -> Real:
        return self.parts[0]

    @property
    def imaginary(self) -> Real:
        return self.parts[1]

    @property
    def value(self) -> torch.Tensor:
        """A value of the tensor's shape."""
        if self.apart is not None:
            return self.apart[0].value
        value = self.both.value
        return value.select(value.ndim - 1, 0)

    @property
    def rank(self) -> int:
        return self.both.value.ndim - 1 if self.apart is None else self.apart[0].value.ndim

    @property
    def shape(self) -> list[Any]:
        return list(self.value.shape)

    def viewed(self, target: Any, *args: Any) -> Pair:
        """Apply a view that does not involve the last dimension to both parts, or to the stacked tensor."""
        if self.apart is not None:
            return Pair(apart=(self.apart[0].of(target, *args), self.apart[1].of(target, *args)))
        return Pair(self.both.of(target, *args))

    def reshaped(self, target: Any, sizes: Sequence[Any]) -> Pair:
        """The same for views that name all dimensions: `sizes` are the new sizes, or the order of dimensions."""
        last = self.rank if target is aten.permute.default else 2
        if self.apart is not None:
            return self.viewed(target, list(sizes))
        return Pair(self.both.of(target, [*sizes, last]))

    def contiguous(self) -> Pair:
        def dense(real: Real) -> Real:
            return real if real.value.is_contiguous() else real.of(aten.clone.default, **_DENSE)

        if self.apart is not None:
            return Pair(apart=(dense(self.apart[0]), dense(self.apart[1])))
        return Pair(dense(self.both))

    def as_complex(self, like: torch.Tensor, *, lazily: bool) -> fx.Node:
        """A complex tensor laid out like another; lazily conjugated, if `lazily` and the other is."""
        is_lazy = lazily and like.is_conj()
        whole = pair(self.real, -self.imaginary) if is_lazy else self
        strides: Sequence[int | torch.SymInt] = like.stride()
        order = sorted(range(self.rank), key=lambda dim: size_hint(strides[dim]), reverse=True)
        whole = Pair(whole.reshaped(aten.permute.default, order).both).contiguous()
        made = whole.reshaped(aten.permute.default, [order.index(dim) for dim in range(self.rank)])
        shown = made.both.of(aten.view_as_complex.default)
        return (shown.of(aten._conj.default) if is_lazy else shown).node


def pair(real: Real, imaginary: Real) -> Pair:
    """A complex tensor from parts of one shape and type."""
    return Pair(apart=(real, imaginary))


@dataclass(frozen=True)
class Written:
    """The context of a rule: calls of operators, the operator being decomposed, and its traced result."""

    call: Callable[..., fx.Node]
    operator: Any
    result: Any

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result's parts, or of a real result."""
        return real_type(self.result.dtype)

    def parts(self, operand: Pair | Real | Number, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
        """An operand's parts in a dtype, by default the result's; a real operand has an imaginary part of zero."""
        dtype = dtype or self.dtype
        if isinstance(operand, Pair):
            return operand.real.to(dtype), operand.imaginary.to(dtype)
        if isinstance(operand, Real):
            return operand.to(dtype), 0.0
        return (operand.real, operand.imag) if isinstance(operand, complex) else (float(operand), 0.0)

    def pair(self, real: Part, imaginary: Part) -> Pair:
        """The result from its parts, of which one may be a number, or need broadcasting."""
        return pair(self.whole(real), self.whole(imaginary))

    def whole(self, part: Part) -> Real:
        if isinstance(part, Real):
            return part.expand(self.result.shape)
        return self.full(part)

    def full(self, number: float) -> Real:
        options = {"dtype": self.dtype, "device": self.result.device}
        return Real(self.call(aten.full.default, list(self.result.shape), number, **options), self.call)


def real_type(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype
