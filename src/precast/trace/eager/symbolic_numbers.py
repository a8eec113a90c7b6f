"""Symbolic numbers where torch or Python would need their values: in ``torch.tensor``, indices, ``max``.

Before: ``torch.tensor([t, 0])``, ``table[t]``, ``x[:, t] = 1``, with ``t`` a symbol: torch reads and specializes it
After:  ``stack([full((), t), full((), 0)])``, ``table.select(0, t)``, ``x.select(1, t)[...] = 1``

Before: ``x[places[0]]``, which reads a one-element tensor in C++
After:  ``x.select(0, places[0].item())``

Before: ``max(t, 8)``, ``min([t, u])``, ``math.pow(t, 2)``, ``math.sqrt(t)``, which need concrete numbers
After:  ``torch.sym_max(t, 8)``, ``torch.sym_min(t, u)``, ``float(t) ** 2``, ``torch.sym_sqrt(t)``; of tensors,
``maximum`` and ``clamp``

Before: ``2.0 / (t - 2)`` in a gradient's formula, which is C++ code, is recorded as a division in Python, which raises
After:  whether ``t`` is 2 is a guard, and the quotient then infinite, as in C++
"""

import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from types import EllipsisType, NoneType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import guard_or_false

from precast.trace.raising_checks import check_message

_MAKERS: tuple[Any, ...] = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_GIVEN: dict[Any, int] = {Tensor.new_tensor: 2}
_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)
# uint8 tensors are masks in eager.
_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
_BASIC = (int, torch.SymInt, slice, EllipsisType, NoneType)


_SYMBOLS = (torch.SymInt, torch.SymFloat)
_ONE_OF = (*_SYMBOLS, Tensor)


@contextmanager
def extremes_of_symbols() -> Iterator[None]:
    """While active, ``math.pow`` and ``math.sqrt`` take symbols; ``max`` and ``min`` also one-element tensors."""
    with (
        patch.object(builtins, "max", greatest),
        patch.object(builtins, "min", least),
        patch.object(math, "pow", _power),
        patch.object(math, "sqrt", _root),
    ):
        yield


@contextmanager
def quotients_of_kernels() -> Iterator[None]:
    """While active, C++ code that divides a symbol by zero gets infinity, as it does for numbers."""
    # Python's own division of symbols calls `float_truediv` and `int_truediv`.
    with patch.object(SymNode, "truediv", _quotient):
        yield


@contextmanager
def whole_powers_of_any_float() -> Iterator[None]:
    """While active, powers of symbols to whole exponents assert nothing; torch asserts that no base is negative."""
    with patch.object(torch.SymFloat, "__pow__", _power_of_float):
        yield


def _quotient(numerator: SymNode, divisor: SymNode) -> SymNode:
    quotient: SymNode
    if guard_or_false(torch.SymFloat(divisor) == 0):
        quotient = numerator.mul(numerator.wrap_float(math.inf))
    else:
        quotient = numerator.float_truediv(divisor)
    return quotient


def _extreme(plain: Callable[..., Any], of_two: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **options: Any) -> Any:
        if options or not _is_symbolic(values):
            return plain(*values, **options)
        return reduce(of_two, _distinct(values if len(values) > 1 else values[0]))

    return extreme


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The values without repeated symbols."""
    seen: dict[object, Any] = {}
    for number, value in enumerate(values):
        seen.setdefault(value.node.expr if isinstance(value, _SYMBOLS) else number, value)
    return list(seen.values())


def _is_symbolic(values: Sequence[Any]) -> bool:
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = values[0]
    return any(isinstance(value, _ONE_OF) for value in values) and all(map(_is_number, values))


def _is_number(value: object) -> bool:
    return value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, _NUMBERS)


def _greater(left: Any, right: Any) -> Any:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _clamped(left, right, torch.maximum, "min")
    return torch.sym_max(left, right)


def _smaller(left: Any, right: Any) -> Any:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _clamped(left, right, torch.minimum, "max")
    return torch.sym_min(left, right)


def _clamped(left: Any, right: Any, of_tensors: Callable[[Tensor, Tensor], Tensor], bound: str) -> Tensor:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return of_tensors(left, right)
    tensor, number = (left, right) if isinstance(left, Tensor) else (right, left)
    return torch.clamp(tensor, **{bound: number})


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, _SYMBOLS) or isinstance(exponent, _SYMBOLS):
        return torch.sym_float(base) ** exponent
    return _math_pow(base, exponent)


def _root(value: Any) -> Any:
    return torch.sym_sqrt(value) if isinstance(value, _SYMBOLS) else _math_sqrt(value)


def _power_of_float(base: Any, exponent: Any) -> Any:
    is_whole = isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer())
    if is_whole:
        return base.__float_pow__(exponent)
    # Later versions of torch than 2.11 assert this themselves.
    torch._check(base >= 0)
    return _torchs_power(base, exponent)


_torchs_power: Any = torch.SymFloat.__pow__
_math_pow, _math_sqrt = math.pow, math.sqrt
greatest, least = _extreme(builtins.max, _greater), _extreme(builtins.min, _smaller)


def is_of_symbols(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch would read a symbol here. Calls that torch refuses are left to it."""
    if func in _INDEXING:
        index = _as_tuple(args[1])
        consumed = sum(1 for each in index if isinstance(each, int | torch.SymInt | slice) or _is_whole(each))
        return (
            any(isinstance(each, torch.SymInt) or _is_whole(each) or _has_tensors(each) for each in index)
            and all((isinstance(each, _BASIC) and not isinstance(each, bool)) or _is_whole(each) for each in index)
            and consumed <= args[0].dim()
        )
    if func not in _MAKERS or len(args) != _GIVEN.get(func, 1) or not kwargs.keys() <= {"dtype", "device"}:
        return False
    numbers = list(_numbers_of(args[-1]))
    dtype = kwargs.get("dtype") or (args[0].dtype if func in _GIVEN else _dtype_of(numbers))
    return (
        any(isinstance(each, torch.SymInt | torch.SymFloat) for each in numbers)
        and all(isinstance(each, _NUMBERS) for each in numbers)
        and (dtype.is_floating_point or not any(isinstance(each, float | torch.SymFloat) for each in numbers))
        and _shape_of(args[-1]) is not None
    )


def call_with_symbols(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same call by functions that accept symbols."""
    if func in _GIVEN:
        return _made(args[1], **{"dtype": args[0].dtype, "device": args[0].device} | dict(kwargs))
    if func in _MAKERS:
        return _made(args[0], **kwargs)
    view = _indexed(args[0], _with_numbers(args[0], _as_tuple(args[1])))
    if func is Tensor.__getitem__:
        return view
    view[...] = args[2]
    return None


def _made(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    numbers, shape = list(_numbers_of(data)), _shape_of(data)
    assert shape is not None, "the lists are of equal lengths"
    single = [torch.full((), each, dtype=dtype or _dtype_of(numbers), device=device) for each in numbers]
    return torch.stack(single).reshape(shape) if shape else single[0]


def _numbers_of(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for each in data:
            yield from _numbers_of(each)
    else:
        yield data


def _dtype_of(numbers: Sequence[Any]) -> torch.dtype:
    has_floats = any(isinstance(each, float | torch.SymFloat) for each in numbers)
    return torch.get_default_dtype() if has_floats else torch.int64


def _shape_of(data: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None if their lengths differ."""
    if not isinstance(data, list | tuple):
        return ()
    inner = {_shape_of(each) for each in data}
    shape = inner.pop() if len(inner) == 1 else None
    return None if shape is None else (len(data), *shape)


def _is_whole(value: object) -> bool:
    """Whether a subscript is a zero-dimensional integer tensor."""
    return isinstance(value, Tensor) and value.ndim == 0 and value.dtype in _WHOLE


def _has_tensors(part: object) -> bool:
    return isinstance(part, slice) and any(map(_is_whole, (part.start, part.stop)))


def _with_numbers(tensor: Tensor, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The subscripts with integer tensors replaced by numbers, which are counted from the start: sizes are >= 0."""
    dimension, found = 0, []
    for each in index:
        if each is Ellipsis:
            dimension += tensor.dim() - sum(1 for other in index if other is not None and other is not Ellipsis)
        elif each is not None:
            size = tensor.shape[dimension]
            if isinstance(each, slice):
                start, stop = (_counted(bound, size, is_bound=True) for bound in (each.start, each.stop))
                each = slice(start, stop, each.step)
            else:
                each = _counted(each, size)
            dimension += 1
        found.append(each)
    return tuple(found)


def _counted(number: Any, size: int | torch.SymInt, *, is_bound: bool = False) -> Any:
    if not _is_whole(number):
        return number
    counted = torch.where(number < 0, number.long() + size, number)
    found: Any = (counted.clamp(0, size) if is_bound else counted).item()  # type: ignore[arg-type]
    # Lets the tracer know, and the graph check, that the index is in bounds.
    for is_inside in (found >= 0, found <= size if is_bound else found < size):
        if isinstance(is_inside, torch.SymBool):
            torch.ops.aten._assert_scalar.default(is_inside, check_message(IndexError("index out of bounds")))
        torch._check(is_inside)
    return found


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _indexed(tensor: Tensor, index: tuple[Any, ...]) -> Tensor:
    """Index a tensor: first by the concrete subscripts, then by one symbol after the other."""
    consumed = sum(1 for each in index if isinstance(each, int | torch.SymInt | slice))
    position, chosen = 0, []
    for each in index:
        if isinstance(each, torch.SymInt):
            chosen.append((position, each))
        if each is Ellipsis:
            position += tensor.dim() - consumed
        elif not isinstance(each, int):
            position += 1
    found = tensor[tuple(slice(None) if isinstance(each, torch.SymInt) else each for each in index)]
    for dimension, number in reversed(chosen):
        found = found.select(dimension, number)
    return found
