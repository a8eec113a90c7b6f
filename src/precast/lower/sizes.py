"""Sizes of traced tensors, which may be sympy expressions, as loop-IR indices."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

from precast.errors import LoweringError
from precast.ir.loops.index import Index, constant, floor_divide, product, remainder, symbol


def to_index(size: int | torch.SymInt) -> Index:
    """A size, stride or offset as an ``Index``."""
    return constant(size) if isinstance(size, int) else _from_sympy(sympy.expand(size.node.expr))


def to_indices(sizes: tuple[int | torch.SymInt, ...]) -> tuple[Index, ...]:
    return tuple(map(to_index, sizes))


def _from_sympy(expression: sympy.Expr) -> Index:
    if expression.is_Integer:
        return constant(int(expression))
    if expression.is_Symbol:
        return symbol(expression.name)
    parts = [_from_sympy(argument) for argument in expression.args] if not expression.is_Pow else []
    if expression.is_Add:
        return sum(parts, constant(0))
    if expression.is_Mul:
        return product(parts)
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return product([_from_sympy(expression.base)] * int(expression.exp))
    if isinstance(expression, FloorDiv | CleanDiv):
        return floor_divide(*parts)
    if isinstance(expression, Mod | PythonMod):
        return remainder(*parts)
    raise LoweringError(
        f"cannot compile the size {expression}",
        why=f"the native backend does not know how to compute {type(expression).__name__} of sizes",
        fix="give that dimension a fixed size, or use backend='interpret'",
    )
