"""The original model as the truth to compare with, called on the ONNX model's inputs without leaving a trace."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.onnx.output_adapter import OutputAdapter


def reference_of(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: OutputAdapter
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function from the tensors of a call to the tensors that the model returns; its buffers stay as they are."""
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        remaining = iter(tensors)
        # Copies, since a model may write to its inputs.
        call = [next(remaining).clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        own_args, own_kwargs = pytree.tree_unflatten(call, tree)
        with torch.no_grad():
            return [tensor.detach() for tensor in outputs.to_model(_call(model, own_args, own_kwargs))]

    return run


def _call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(model, torch.nn.Module):
        return model(*args, **kwargs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return torch.func.functional_call(model, buffers, args, kwargs)
