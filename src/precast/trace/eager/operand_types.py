"""Dtypes as in eager: its error for operand dtypes that it refuses, at the user's line, and its result dtypes.

Before: ``mm(f64[2, 3], f32[3, 4])`` is traced as ``f64[2, 4]``, ``huber_loss(f32[2], f64[2])`` as ``f64[]``.
After:  the first raises what eager raises, the second is ``f32[]``.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from precast.ops.eager_kernels import Refusal, eager_answer
from precast.trace.provenance import innermost_users_line

Dispatch = Callable[..., Any]
Retype = Callable[[Tensor, torch.dtype], Tensor]


class _Running(threading.local):
    """Whether an operator is running whose dtypes were checked against eager: its parts are not checked again."""

    is_part = False


_running = _Running()


def checking_dispatch(dispatch: Dispatch, mode: FakeTensorMode) -> Dispatch:
    """The dispatch of a fake mode, with eager's dtypes."""

    def retyped(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)

    def checked(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        run = partial(dispatch, func, types, args, kwargs)
        if not isinstance(func, OpOverload):
            return run()
        # Tensors that torch's own rule creates are not the program's.
        with torch._C.DisableTorchFunction():
            return _with_types_of_eager(func, args, kwargs, run, retyped)

    return checked


def checking_decompositions(rules: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions with the result dtypes of the decomposed operators."""

    def checking(op: OpOverload, rule: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(rule)
        def checked(*args: Any, **kwargs: Any) -> Any:
            return _with_types_of_eager(op, args, kwargs, partial(rule, *args, **kwargs), Tensor.to)

        return checked

    return {op: checking(op, rule) for op, rule in rules.items()}


def _with_types_of_eager(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any], retyped: Retype
) -> Any:
    if op.namespace != "aten" or _running.is_part:
        return run()
    answer = eager_answer(op, args, kwargs)
    if isinstance(answer, Refusal):
        error = answer.error()
        if (line := innermost_users_line()) is not None:
            error.add_note(f"at {line}")
        raise error
    _running.is_part = True
    try:
        result = run()
        return result if answer is None or op._schema.is_mutable else _retype(result, answer, retyped)
    finally:
        _running.is_part = False


def _retype(result: Any, types: Sequence[torch.dtype], retyped: Retype) -> Any:
    leaves, tree = pytree.tree_flatten(result)
    given = [leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)]
    if len(given) != len(types) or given == list(types):
        return result
    wanted = iter(types)
    changed = [_of_type(leaf, next(wanted), retyped) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return pytree.tree_unflatten(changed, tree)


def _of_type(tensor: Tensor, dtype: torch.dtype, retyped: Retype) -> Tensor:
    return tensor if tensor.dtype is dtype else retyped(tensor, dtype)
