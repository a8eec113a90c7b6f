"""Calibration: finds the range of layers' inputs with example calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from precast.errors import InputValueError


def largest_inputs(model: nn.Module, names: Iterable[str], calls: Iterable[Any]) -> dict[str, torch.Tensor]:
    """The largest absolute value among the inputs of each named layer, over all calls.

    A call is a tuple of arguments, a dict of keyword arguments, or the one argument.
    """
    found: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            most = args[0].detach().abs().max().float() if args[0].numel() else torch.zeros(())
            found[name] = torch.maximum(found[name], most) if name in found else most

        return hook

    wanted = list(names)
    hooks = [model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in wanted]
    try:
        with torch.no_grad():
            for call in calls:
                _run(model, call)
    finally:
        for each in hooks:
            each.remove()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputValueError(
            f"The calibration never ran {missing[0] or 'the model'}.",
            why="static activations are rounded by what layers were given in example calls",
            fix="Give calls that run all layers, leave this one out (`skip`), or use activations='dynamic'.",
        )
    return found


def _run(model: nn.Module, call: Any) -> None:
    if isinstance(call, dict):
        model(**call)
    elif isinstance(call, Sequence):
        model(*call)
    else:
        model(call)
