"""Sizes of traced tensors, which may be sympy expressions, as loop-IR indices."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.utils._sympy.functions import Max
from torch.utils._sympy.symbol import SymT, symbol_is_type

from precast.errors import LoweringError
from precast.native.loops.expressions import FUNCTIONS
from precast.native.loops.index import Index, constant, product, symbol

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


def symbols_in(value: object) -> Iterable[str]:
    """Names of the dynamic sizes in a traced value, in order."""
    if isinstance(value, tuple | list):
        return [name for each in value for name in symbols_in(each)]
    is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    numbers = (*value.shape, *value.stride()) if is_dense else (value,)  # type: ignore[attr-defined]
    symbolic = [number.node.expr for number in numbers if isinstance(number, Symbolic)]
    return [name for expression in symbolic for name in sorted(each.name for each in expression.free_symbols)]


def to_index(size: int | torch.SymInt) -> Index:
    """A size, stride or offset as an ``Index``."""
    return constant(size) if isinstance(size, int) else expression_to_index(size.node.expr)


def expression_to_index(expression: sympy.Expr) -> Index:
    """An expression over size symbols as an ``Index``."""
    return _from_sympy(sympy.expand(expression))


MOST = 2**40
"""The maximal number of elements of a buffer: a size that may exceed it counts as unbounded."""


def known_bound(value: object, known: Collection[str] = ()) -> Index | None:
    """The upper bound of a data-dependent size, as far as its range and the user's assertions imply one.

    It may depend on the data-dependent sizes that are ``known`` already.
    """
    if isinstance(value, tuple | list):
        return next((bound for each in value if (bound := known_bound(each, known)) is not None), None)
    sizes: tuple[object, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)
    found = [each for each in sizes if isinstance(each, torch.SymInt) and free_unbacked_symbols(each)]
    if not found or not found[0].node.expr.is_Symbol:
        return None
    symbol, shape_env = found[0].node.expr, found[0].node.shape_env
    promised = (each.expr for each in shape_env.deferred_runtime_asserts.get(symbol, ()))
    bounds = [bound for each in promised if (bound := _bound_in(each, symbol, known)) is not None]
    upper = shape_env.var_to_range[symbol].upper
    if upper.is_Integer and upper < MOST:
        bounds.append(constant(int(upper)))
    # A bound by another size is tighter than one from the symbol's own range.
    return min(bounds, key=lambda bound: -1 if bound.constant is None else bound.constant, default=None)


def _bound_in(promise: sympy.Basic, symbol: sympy.Symbol, known: Collection[str]) -> Index | None:
    """The bound that an assertion ``symbol + … <= …`` implies; None if it has another form."""
    if isinstance(promise, sympy.GreaterThan | sympy.StrictGreaterThan):
        promise = promise.reversed
    if not isinstance(promise, sympy.LessThan | sympy.StrictLessThan):
        return None
    room = sympy.expand(promise.rhs - promise.lhs) - (1 if isinstance(promise, sympy.StrictLessThan) else 0)
    bound = room + symbol
    is_known = all(each.name in known for each in unbacked_in(bound))
    return expression_to_index(bound) if is_known and symbol not in bound.free_symbols else None


def unbacked_in(expression: sympy.Basic) -> list[sympy.Symbol]:
    """The data-dependent sizes in an expression."""
    return [symbol for symbol in expression.free_symbols if symbol_is_type(symbol, SymT.UNBACKED_INT)]


def free_unbacked(expression: sympy.Basic) -> bool:
    return bool(unbacked_in(expression))


def to_strides(strides: tuple[int | torch.SymInt, ...]) -> tuple[Index, ...]:
    """Strides, without the ``max(1, size)`` that matters only for size 0, where nothing is accessed."""
    return tuple(to_index(stride) if isinstance(stride, int) else _stride(stride) for stride in strides)


def _stride(stride: torch.SymInt) -> Index:
    expression = stride.node.expr
    plain = expression.replace(lambda part: isinstance(part, sympy.Max | Max) and 1 in part.args, _without_one)
    return _from_sympy(sympy.expand(plain))


def _without_one(expression: sympy.Expr) -> sympy.Expr:
    (other,) = [argument for argument in expression.args if argument != 1]
    return other


def to_indices(sizes: tuple[int | torch.SymInt, ...]) -> tuple[Index, ...]:
    """Sizes of a tensor; one that a guard specializes to 1 is 1, whatever its expression, since it may be broadcast."""
    return tuple(constant(1) if _is_guarded_one(size) else to_index(size) for size in sizes)


def _is_guarded_one(size: int | torch.SymInt) -> bool:
    may_be = isinstance(size, torch.SymInt) and size.node.has_hint() and size.node.hint == 1
    return may_be and statically_known_true(size == 1)


def _from_sympy(expression: sympy.Expr) -> Index:
    if expression.is_Integer:
        return constant(int(expression))
    if expression.is_Symbol:
        return symbol(expression.name)
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return product([_from_sympy(expression.base)] * int(expression.exp))
    if function := FUNCTIONS.get(type(expression).__name__):
        return function(*map(_from_sympy, expression.args))
    raise LoweringError(
        f"cannot compile the size {expression}",
        why=f"the native backend does not know how to compute {type(expression).__name__} of sizes",
        fix="give that dimension a fixed size, or use backend='interpret'",
    )
