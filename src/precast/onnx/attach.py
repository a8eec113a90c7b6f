"""Weights from a safetensors file for a model that was exported without them."""

from pathlib import Path

import onnx_ir as ir
import torch

from precast.errors import InputValueError, OnnxError
from precast.onnx.weights import TorchWeight, missing_in


def attach(model: ir.Model, path: Path) -> None:
    """Change ``model`` in place; either all missing weights are found and fit, or none is attached."""
    tensors = _read(path)
    values = {name: model.graph.initializers[name] for name in missing_in(model)}
    absent = [name for name in values if name not in tensors]
    if absent:
        raise InputValueError(
            f"{path} has no tensor for {', '.join(absent[:5])}{' …' if len(absent) > 5 else ''}.",
            why="weights are found by the names that they have in the module",
            fix="Save the module's state_dict() with safetensors.torch.save_file.",
        )
    weights = {name: TorchWeight(tensors[name], name) for name in values}
    for name, weight in weights.items():
        expected = values[name].const_value
        assert expected is not None, f"{name} is an initializer"
        if tuple(expected.shape) != tuple(weight.shape) or expected.dtype != weight.dtype:
            raise InputValueError(
                f"{name} is {weight.dtype.name}{list(weight.shape)} in {path}.",
                why=f"the model has {expected.dtype.name}{list(expected.shape)}",
                fix="Attach the weights of the same configuration.",
            )
    for name, weight in weights.items():
        values[name].const_value = weight


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise OnnxError(
            "safetensors is not installed.", why="it reads the file of weights", fix="Install safetensors."
        ) from None
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputValueError(
            f"{path} cannot be read.", why=str(error), fix="Name a safetensors file that exists and is whole."
        ) from error
