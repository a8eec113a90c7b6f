"""The metadata of a traced tensor: dtype, sizes (numbers or expressions), strides, device."""

from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch

from precast.artifact.dtypes import DTYPES

Size: TypeAlias = int | sympy.Expr
"""A size or stride: a number, or an expression over the program's size symbols."""

TORCH_DTYPES: dict[str, torch.dtype] = {short: getattr(torch, each.name) for short, each in DTYPES.items()}
"""The torch dtypes that compiled code supports, by their short names."""
_SHORT_NAMES = {dtype: short for short, dtype in TORCH_DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """A short stable name: ``f32``, ``i64``, ``bool``; torch's own name for rare ones."""
    return _SHORT_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def as_size(value: int | torch.SymInt) -> Size:
    """The expression of a symbolic integer, or its number if it is constant."""
    if isinstance(value, int):
        return value
    expression = value.node.expr
    return int(expression) if expression.is_number else expression


@dataclass(frozen=True)
class TensorSpec:
    """The dtype, shape, strides and device of a tensor. Strides are ``None`` for sparse layouts."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None
    device: torch.device
    requires_grad: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        strided = tensor.layout is torch.strided
        return cls(
            dtype=tensor.dtype,
            shape=tuple(map(as_size, tensor.shape)),
            strides=tuple(map(as_size, tensor.stride())) if strided else None,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )

    @property
    def is_symbolic(self) -> bool:
        return any(not isinstance(size, int) for size in (*self.shape, *(self.strides or ())))

    def text(self, *, strides: bool = False) -> str:
        """``f32[2, s0]``, optionally followed by ``strides=(s0, 1)``, and by the device if it is not the CPU."""
        parts = [f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"]
        if strides and self.strides is not None:
            parts.append(f"strides=({', '.join(map(str, self.strides))})")
        if self.device.type != "cpu":
            parts.append(str(self.device))
        return " ".join(parts)

    def __str__(self) -> str:
        return self.text()


def describe(value: object, *, strides: bool = False) -> str:
    """A traced value as text: specs for tensors, expressions for symbolic numbers, nested for tuples."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value).text(strides=strides)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__}({value.node.expr})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(item, strides=strides) for item in value)})"
    return repr(value)
