"""Weights as ONNX tensors that share memory with torch, and weights that are not yet available.

Also attaches weights from a safetensors file to a model that was exported without them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import is_fake

from precast.errors import InputValueError, OnnxError
from precast.onnx.element_types import data_type_of, unpacked_shape

_Array = np.ndarray[Any, np.dtype[Any]]


class TorchWeight(ir.Tensor[torch.Tensor]):
    """A torch tensor as an ONNX tensor; its bytes are read only when the model is written or run."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        shape = ir.Shape([int(size) for size in unpacked_shape(tensor)], frozen=True)
        super().__init__(tensor, dtype=data_type_of(tensor.dtype, what=f"The weight {name!r}"), shape=shape, name=name)
        self._tensor = tensor.detach()

    @property
    def tensor(self) -> torch.Tensor:
        return self._tensor

    @property
    def is_missing(self) -> bool:
        """Whether only the shape is known: the tensor is on the meta device, or a fake one."""
        return self._tensor.is_meta or is_fake(self._tensor)

    def numpy(self) -> _Array:
        """An array over the same memory, if the tensor is contiguous on the CPU."""
        if self.is_missing:
            raise missing_weights([self.name or ""])
        tensor = self._tensor.cpu().contiguous()
        if self.dtype is ir.DataType.FLOAT4E2M1:
            pairs = tensor.view(torch.uint8)
            return torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).numpy().view(self.dtype.numpy())
        if self.dtype.numpy().isbuiltin == 1:
            return np.asarray(tensor.numpy())
        # numpy has no such type: pass the bits, labelled with the extension type's name.
        carrier = torch.uint8 if tensor.element_size() == 1 else torch.uint16
        return np.asarray(tensor.view(carrier).numpy().view(self.dtype.numpy()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tobytes(self) -> bytes:
        return self._bytes().tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        file.write(self._bytes().data)

    def _bytes(self) -> _Array:
        """The raw memory, in which two small numbers may share a byte."""
        if self.dtype is ir.DataType.FLOAT4E2M1 and not self.is_missing:
            return np.asarray(self._tensor.cpu().contiguous().view(torch.uint8).numpy()).reshape(-1)
        return np.ascontiguousarray(self.numpy()).reshape(-1).view(np.uint8)


def missing_weights(names: list[str]) -> OnnxError:
    """The error for reading weights that a model does not have."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return OnnxError(
        f"The model has no values for {shown}.",
        why="it was exported from the meta device: its structure is known, its weights are not",
        fix='Call attach_weights("weights.safetensors") on the ONNXProgram first.',
    )


def missing_in(model: ir.Model) -> list[str]:
    """The initializers of which only the shape is known."""
    tensors = ((name, value.const_value) for name, value in model.graph.initializers.items())
    return [name for name, tensor in tensors if isinstance(tensor, TorchWeight) and tensor.is_missing]


@contextmanager
def missing_as_inputs(model: ir.Model) -> Iterator[None]:
    """While active, weights of unknown value are inputs, so that their values are not read."""
    graph = model.graph
    missing = {name: graph.initializers.pop(name) for name in missing_in(model)}
    weights = {name: value.const_value for name, value in missing.items()}
    for value in missing.values():
        value.const_value = None
        graph.inputs.append(value)
    try:
        yield
    finally:
        for name, value in missing.items():
            graph.inputs.remove(value)
            value.const_value = weights[name]
            graph.register_initializer(value)


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
