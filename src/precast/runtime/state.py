"""A model's named tensors, to read and to write between calls."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

import numpy as np

from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputValueError
from precast.runtime.native import OpenModel
from precast.runtime.tensors import Array, Tensor, as_in_memory, as_tensor, pack_tensors, short_name, with_bits


class StateStore(Protocol):
    """What keeps a model's state: an opened library, or torch's tensors."""

    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str) -> Weight: ...

    def write(self, name: str, value: Tensor) -> None: ...


class State(MutableMapping[str, Any]):
    """Named tensors. Reading gives a copy as a numpy array; writing takes any tensor of the same dtype and shape.

    Numpy has no bfloat16: such a tensor is read as its bits, in ``uint16``, and written so or as ``ml_dtypes`` has it.
    """

    def __init__(self, store: StateStore):
        self._store = store

    def __getitem__(self, name: str) -> Array:
        if name not in self._store.names():
            raise KeyError(name)
        return self._store.read(name).carrier

    def __setitem__(self, name: str, value: object) -> None:
        if name not in self._store.names():
            raise InputValueError(
                f"The model has no state {name!r}.",
                why=f"its state is {', '.join(self._store.names()) or 'empty'}",
                fix="Write to one of these. What no entry updates may have been folded into others when the model was "
                "packaged; with options={'freeze': False} it stays.",
            )
        self._store.write(name, as_in_memory(as_tensor(value, name=name)))

    def __delitem__(self, name: str) -> None:
        raise InputValueError(
            "State cannot be removed.", why="the program reads it at every call", fix="Write zeros, if that is meant."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names())

    def __len__(self) -> int:
        return len(self._store.names())


class NativeState:
    """The state of an opened library."""

    def __init__(self, model: OpenModel):
        self._model = model
        self._names = model.state_names()

    def names(self) -> tuple[str, ...]:
        return self._names

    def read(self, name: str) -> Weight:
        layout = self._model.describe_state(name)
        dtype = short_name(layout.dtype_code, layout.dtype_bits)
        weight = Weight(dtype, np.empty(layout.shape[: layout.rank], weight_carrier(dtype)))
        self._model.read_state(name, pack_tensors([weight]))
        return weight

    def write(self, name: str, value: Tensor) -> None:
        layout = self._model.describe_state(name)
        dtype = short_name(layout.dtype_code, layout.dtype_bits)
        self._model.write_state(name, pack_tensors([with_bits(value, dtype)]))
