"""Weights as ONNX tensors that share memory with torch, and weights that are not there yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import onnx_ir as ir
import torch

from precast.errors import OnnxError
from precast.onnx.element_types import data_type_of

_Array = np.ndarray[Any, np.dtype[Any]]


class TorchWeight(ir.Tensor[torch.Tensor]):
    """A torch tensor as ONNX sees it; its bytes are read only when the model is written or run."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        super().__init__(tensor, dtype=data_type_of(tensor.dtype, what=f"The weight {name!r}"), name=name)
        self._tensor = tensor.detach()

    @property
    def tensor(self) -> torch.Tensor:
        return self._tensor

    @property
    def is_missing(self) -> bool:
        """Whether only the shape is known: the tensor is on the meta device."""
        return self._tensor.is_meta

    def numpy(self) -> _Array:
        """An array of the same memory, where the tensor lies contiguously on the CPU."""
        if self.is_missing:
            raise missing_weights([self.name or ""])
        tensor = self._tensor.cpu().contiguous()
        if self.dtype.numpy().isbuiltin == 1:
            return np.asarray(tensor.numpy())
        # numpy has no such type of its own: carry the bits over, and call them by the name of the extension type.
        carrier = torch.uint8 if tensor.element_size() == 1 else torch.uint16
        return np.asarray(tensor.view(carrier).numpy().view(self.dtype.numpy()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tobytes(self) -> bytes:
        return self.numpy().tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        file.write(np.ascontiguousarray(self.numpy()).reshape(-1).view(np.uint8).data)


def missing_weights(names: list[str]) -> OnnxError:
    """The error for a model that is asked for numbers it does not have."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return OnnxError(
        f"The model has no values for {shown}.",
        why="it was exported from the meta device: its structure is known, its weights are not",
        fix='Call attach_weights("weights.safetensors") on the ONNXProgram first.',
    )


def missing_in(model: ir.Model) -> list[str]:
    """The initializers that have a shape only."""
    tensors = ((name, value.const_value) for name, value in model.graph.initializers.items())
    return [name for name, tensor in tensors if isinstance(tensor, TorchWeight) and tensor.is_missing]


@contextmanager
def missing_as_inputs(model: ir.Model) -> Iterator[None]:
    """While active, weights that have a shape only are inputs, so that nobody asks for their values."""
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
