"""Arguments and programs that ``train_step`` refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from precast.errors import CaptureError, InputTypeError, InputValueError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def refuse_impure(reads: Sequence[str]) -> None:
    """Refuse a step that has read clocks, random numbers or files."""
    if reads:
        raise CaptureError(
            "The step reads something that no guard can check.",
            at="; ".join(dict.fromkeys(reads)),
            why="a compiled step would keep its value from the capture",
            fix="Compute it outside, and pass it as a part of the batch.",
        )


def check_budget(memory_budget: float | None, accumulate: int, group: ProcessGroup | None) -> None:
    """Refuse budgets for steps with several forwards, or with collectives."""
    if memory_budget is not None and (accumulate > 1 or group is not None):
        raise InputValueError(
            "memory_budget requires one process and one micro-batch.",
            why="a step is partitioned once, between its forward and its backward",
            fix="Leave out memory_budget: accumulate= and shard= lower the memory of a step, too.",
        )


def refuse_autocast() -> None:
    """Refuse a step within an autocast region."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputValueError(
            "A training step is called under autocast.",
            why="the backward and the update would be cast too, which they are not where autocast ends with the loss",
            fix="Enter autocast inside the loss function: with torch.autocast('cpu', torch.bfloat16): return …",
        )


def check_leaves(leaves: Iterable[object], parameters: Sequence[torch.Tensor]) -> None:
    """Refuse a batch through which gradients would flow to what computed it, or whose memory holds other numbers."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.is_neg() or leaf.is_conj():
            raise InputValueError(
                "A tensor of the batch is lazily negated or conjugated.",
                why="a program reads its memory, where other numbers are",
                fix="Pass tensor.resolve_conj().resolve_neg().",
            )
        is_parameter = leaf.requires_grad and any(leaf is parameter for parameter in parameters)
        if leaf.grad_fn is not None or is_parameter:
            raise InputValueError(
                "A tensor of the batch was computed from parameters, or is one.",
                why="a step's gradients end at its batch, but in eager mode they would flow on to these parameters",
                fix="Pass tensor.detach(), or compute it inside the loss function.",
            )


def check_arguments(
    model: object, grad_clip: object, accumulate: object, entries: Sequence[str], known: Iterable[str]
) -> None:
    """Refuse what is not a model, and invalid settings."""
    if not isinstance(model, torch.nn.Module):
        raise InputTypeError(
            f"train_step() was given an object of type {type(model).__name__} as model.",
            why="a step updates the parameters of a module",
            fix="Pass an nn.Module.",
        )
    _check_modules(model)
    if grad_clip is not None and not (isinstance(grad_clip, float | int) and grad_clip > 0):
        raise InputValueError(
            f"grad_clip cannot be {grad_clip!r}.", why="it is the largest norm of the gradients", fix="Pass 1.0, say."
        )
    if not (type(accumulate) is int and accumulate > 0):
        raise InputValueError(
            f"accumulate cannot be {accumulate!r}.", why="it counts the parts of a batch", fix="Pass 1 or more."
        )
    if isinstance(entries, str) or not entries or not set(entries) <= set(known):
        raise InputValueError(
            f"entries cannot be {entries!r}.", why=f"they are of {', '.join(known)}", fix="Pass ('train', 'eval')."
        )


def _check_modules(model: torch.nn.Module) -> None:
    """Refuse wrappers and compiled modules, whose forward is not the model's own Python code."""
    for name, module in model.named_modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        found = next((kind for kind in _FOREIGN if kind in kinds), None)
        if found is not None:
            raise InputTypeError(
                f"{f'The submodule {name!r}' if name else 'The model'} is a {found}.",
                why="a step traces the model's own forward, and its gradients and collectives are part of the program",
                fix=_FOREIGN[found],
            )


_FOREIGN = {
    "DistributedDataParallel": "Pass the module that it wraps, and process_group=torch.distributed.group.WORLD.",
    "FullyShardedDataParallel": "Pass the module that it wraps, with process_group= and shard='parameters'.",
    "FSDPModule": "Pass the module without fully_shard, with process_group= and shard='parameters'.",
    "OptimizedModule": "Pass the module that was given to torch.compile.",
    "ScriptModule": "Pass the module that was scripted.",
}
"""Classes by their names, since some are not imported unless they are used, and what to do instead."""
