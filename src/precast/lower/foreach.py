"""Operators over lists of tensors, which optimizers are written with, as one operator for each tensor.

Before: ``_foreach_add([p, q], [m, n], alpha=2)``
After: ``[add(p, m, alpha=2), add(q, n, alpha=2)]``
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from precast._torch_compat import aten_operators
from precast.ops.decompositions import DecompositionTable

_aten = torch.ops.aten
_ALIKE = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "cos", "cosh", "div", "erf",
    "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "max", "mm", "mul",
    "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh",
    "trunc",
)  # fmt: skip


def _addcmul(source: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcmul(source, tensor1, tensor2, value=value)


def _addcdiv(source: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcdiv(source, tensor1, tensor2, value=value)


def _maximum(source: Tensor, other: Tensor | float) -> Tensor:
    return torch.maximum(source, other) if isinstance(other, Tensor) else torch.clamp_min(source, other)


def _minimum(source: Tensor, other: Tensor | float) -> Tensor:
    return torch.minimum(source, other) if isinstance(other, Tensor) else torch.clamp_max(source, other)


def _norm(source: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(source, ord, dtype=dtype)
    return result


_MEMBERS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _ALIKE},
    "addcdiv": _addcdiv, "addcmul": _addcmul, "copy": _aten.copy.default, "maximum": _maximum, "minimum": _minimum,
    "norm": _norm, "zero": torch.zeros_like,
}  # fmt: skip
# Their factors are the elements of one tensor.
_LEFT_WHOLE = (_aten._foreach_addcdiv.Tensor, _aten._foreach_addcmul.Tensor)


def _for_each(member: Callable[..., Tensor], *arguments: object, **options: object) -> list[Tensor]:
    count = next(len(each) for each in arguments if isinstance(each, list | tuple))

    def of(number: int) -> list[object]:
        return [each[number] if isinstance(each, list | tuple) else each for each in arguments]

    return [member(*of(number), **options) for number in range(count)]


def foreach_decompositions() -> DecompositionTable:
    """The rules for all overloads that give new tensors."""
    packets = aten_operators({f"_foreach_{name}": member for name, member in _MEMBERS.items()})
    overloads = [(getattr(packet, name), member) for packet, member in packets for name in packet.overloads()]
    return {
        overload: partial(_for_each, member)
        for overload, member in overloads
        if not overload._schema.is_mutable and overload not in _LEFT_WHOLE
    }
