"""Keeps the tensors of an optimizer in place, also under optimizers that replace them by new ones.

Before: ``state["exp_avg"] = beta * state["exp_avg"] + (1 - beta) * gradient`` creates a tensor in each step
After:  the new values are written to the old tensor, which is state of a program
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from precast.errors import CaptureError
from precast.trace.captured_tensors import is_real_tensor


@contextmanager
def rebound_in_place(optimizer: Optimizer) -> Iterator[None]:
    """While active, state may be replaced; afterwards the old tensors are restored, with the new values."""
    holders = _holders(optimizer)
    before = [dict(holder) for holder in holders]
    try:
        yield
        for holder, known in zip(holders, before, strict=True):
            _write_back(optimizer, holder, known)
    finally:
        # Even after an error, no traced tensor remains in the state.
        for holder, known in zip(holders, before, strict=True):
            _restore(holder, known)
        for parameter in [each for each, state in optimizer.state.items() if _is_traced(state)]:
            del optimizer.state[parameter]


def _holders(optimizer: Optimizer) -> list[dict[Any, Any]]:
    return [
        vars(optimizer),
        *optimizer.param_groups,
        *(state for state in optimizer.state.values() if isinstance(state, dict)),
    ]


def _write_back(optimizer: Optimizer, holder: dict[Any, Any], known: dict[Any, Any]) -> None:
    for name, new in holder.items():
        old = known.get(name)
        if new is old or not isinstance(new, torch.Tensor):
            continue
        if isinstance(old, torch.Tensor) and old.shape == new.shape and old.dtype == new.dtype:
            old.copy_(new)
        elif not is_real_tensor(new):
            kind = "none before" if old is None else "one of another kind before"
            raise CaptureError(
                f"{type(optimizer).__name__} creates {name!r} of its state in the middle of training.",
                why=f"there was {kind}, and a program has the same state in each step",
                fix="Let the optimizer create all of its state in its first step, and keep shapes and dtypes.",
            )


def _restore(holder: dict[Any, Any], known: dict[Any, Any]) -> None:
    for name, new in list(holder.items()):
        old = known.get(name)
        is_alike = (
            isinstance(new, torch.Tensor)
            and isinstance(old, torch.Tensor)
            and (old.shape, old.dtype) == (new.shape, new.dtype)
        )
        if is_alike or _is_traced({name: new}):
            if old is None:
                del holder[name]
            else:
                holder[name] = old


def _is_traced(values: Any) -> bool:
    """Whether some value belongs to a trace."""
    if not isinstance(values, dict):
        return False
    return any(isinstance(each, torch.Tensor) and not is_real_tensor(each) for each in values.values())
