"""Calls of a user's model for the command line: eagerly, compiled, with gradients or without."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.api import compile
from precast.cli.model_reference import Model, load_model

Call = Callable[[], Any]


def calls_to_compare(reference: str, *, threads: int | None, train: bool, freeze: bool) -> dict[str, Call]:
    """The model eagerly and compiled."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = load_model(reference)
    compiled = compile(model.module, options={"freeze": True} if freeze else None)
    return {"eager": call_of(model.module, model, train=train), "precast": call_of(compiled, model, train=train)}


def call_of(callee: Callable[..., Any], model: Model, *, train: bool) -> Call:
    """One call of ``callee`` with the model's arguments, and, to train, of the backward of all that it gives."""

    def infer() -> Any:
        with torch.no_grad():
            return callee(*model.args, **model.kwargs)

    def step() -> Any:
        result = callee(*model.args, **model.kwargs)
        leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
        torch.autograd.backward(leaves, [torch.ones_like(each) for each in leaves])
        return result

    return step if train else infer
