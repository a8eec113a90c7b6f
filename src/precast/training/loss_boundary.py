"""What belongs to the loop around a loss function, which ``train_step`` replaces, and so must not be in it.

A compiled step updates once, after the loss, with the learning rates that it was given, and gradients of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from precast.errors import InputValueError
from precast.graph.opened_objects import opened

_WHY = "a step is the update of its optimizer, made once, after the loss function and with its gradients"


@contextmanager
def only_a_loss(optimizer: Optimizer, batch: Any) -> Iterator[None]:
    """While active, refuse steps of the optimizer, changes of its groups, scaled losses, and results in the batch."""
    before = [dict(group) for group in optimizer.param_groups]
    given = dict(_contents(batch))
    scaled = patch.object(torch.amp.GradScaler, "scale", _scaled(torch.amp.GradScaler.scale))
    with patch.object(optimizer, "step", _refused_step), scaled:
        yield
    for group, known in zip(optimizer.param_groups, before, strict=False):
        changed = [name for name, value in group.items() if known.get(name) is not value]
        if changed:
            raise InputValueError(
                f"The loss function changes {changed[0]!r} of the optimizer's groups.",
                why=_WHY,
                fix="Change it before or after step(batch): learning rates are inputs of each step.",
            )
    # What is taken out of the batch, as by pop, is in the caller's all the same.
    left = [place for place, value in _contents(batch) if place not in given or given[place] is not value]
    if left:
        raise InputValueError(
            f"The loss function writes batch{left[0]}.",
            why="a step is given the batch's tensors, not the containers that the caller has them in",
            fix="Return it beside the loss: (loss, results). Or write into a copy: batch = dict(batch).",
        )


def _contents(batch: Any) -> list[tuple[str, Any]]:
    return [(pytree.keystr(place), value) for place, value in pytree.tree_flatten_with_path(opened(batch))[0]]


def _refused_step(*args: Any, **kwargs: Any) -> NoReturn:
    raise InputValueError(
        "The loss function calls the optimizer's step.",
        why=_WHY,
        fix="Return the loss only: step(batch) computes its gradients, and updates.",
    )


def _scaled(scale: Callable[..., Any]) -> Callable[..., Any]:
    def refused_unless_disabled(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled():
            raise InputValueError(
                "The loss function scales its loss with a GradScaler.",
                why="the update would use scaled gradients: scaler.step(optimizer), which divides them, is not called",
                fix="Return the loss without the scaler; autocast to bfloat16 needs none. "
                "skip_nonfinite=True leaves out steps with infinite gradients.",
            )
        return scale(scaler, outputs)

    return refused_unless_disabled
