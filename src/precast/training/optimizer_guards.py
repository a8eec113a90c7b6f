"""Guards on what an optimizer's step reads besides groups and states: attributes, those of its class, and hooks.

Before: ``self.trust = 0.5`` or ``self.limits["top"] = 1.0`` between two steps of a custom optimizer
After:  the next step is recompiled
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from precast.errors import InputValueError
from precast.graph.boundary import has_hooks
from precast.training.numbers import Counted

_LOOKED_AT_ELSEWHERE = frozenset({"param_groups", "state", "step", "_opt_called"})
_PLAIN = (bool, int, float, str, type(None))


def attributes_key(optimizer: Optimizer, counted: Counted) -> tuple[Any, ...]:
    """A key of the attributes, except tensors and numbers that are state; objects are keyed by identity."""
    return tuple(
        (name, value if isinstance(value, _PLAIN) else id(value))
        for name, value in _attributes(optimizer)
        if name not in counted.attributes
    )


def reads_of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Objects from which its step may reach more of Python's state, by name."""
    held = {f"optimizer_{name}": value for name, value in _attributes(optimizer) if not isinstance(value, _PLAIN)}
    return {"optimizer_class": type(optimizer), **held} if _is_own(optimizer) else {}


def _attributes(optimizer: Optimizer) -> Iterable[tuple[str, Any]]:
    # Torch's own classes set what they read only once, or in their groups.
    if not _is_own(optimizer):
        return ()
    return [
        (name, value)
        for name, value in vars(optimizer).items()
        if name not in _LOOKED_AT_ELSEWHERE and not isinstance(value, torch.Tensor)
    ]


def _is_own(optimizer: Optimizer) -> bool:
    return not type(optimizer).__module__.startswith("torch.optim.")


def check_hooks(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Refuse hooks around steps or on gradients, whose user code a program would omit."""
    if (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    ):
        raise InputValueError(
            "The optimizer has hooks around its steps.",
            why="a hook would run once, when the step is traced, and never again",
            fix="Remove the hooks, and do what they do before or after step(batch).",
        )
    if any(map(has_hooks, parameters)):
        raise InputValueError(
            "A parameter has a hook on its gradient.",
            why="a hook would run once, when the step is traced, and never again",
            fix="Remove the hook; clip with grad_clip=, or change the loss function.",
        )
    if (step := vars(optimizer).get("step")) is not None and not _is_of_class(step, type(optimizer)):
        raise InputValueError(
            "The optimizer's step was exchanged for another function.",
            why="the step of its class is traced, so what the other one does would be left out",
            fix="Derive a class from the optimizer's, and write what else its steps do there.",
        )


def _is_of_class(step: Any, kind: type[Optimizer]) -> bool:
    """Whether this is the class's own step: schedules wrap it in a function that records that there was a step."""
    if getattr(step, "_wrapped_by_lr_sched", False):
        step = step.__wrapped__
    return inspect.unwrap(getattr(step, "__func__", step)) is inspect.unwrap(kind.step)
