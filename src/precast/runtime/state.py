"""A model's named tensors, to read and to write between calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from precast.artifact.archive import write_file
from precast.artifact.weights import Weight, read_weights, weight_carrier, weight_pieces
from precast.errors import ArtifactError, InputValueError
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a safetensors file, which appears complete or not at all."""
        write_file(Path(path), weight_pieces(self.weights()))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take what ``save`` wrote; a file that does not fit changes nothing."""
        try:
            found = read_weights(memoryview(Path(path).read_bytes()))
        except OSError as problem:
            raise ArtifactError(f"{path} cannot be read", why=str(problem), fix="check the path") from problem
        self.take(found, os.fspath(path))

    def weights(self) -> dict[str, Weight]:
        """Copies of all tensors, as their bits."""
        return {name: self._store.read(name) for name in self._store.names()}

    def take(self, found: Mapping[str, Weight], source: str) -> None:
        """Write all tensors, out of a file called ``source``; if one does not fit, none is written."""
        for name in sorted({*self, *found}):
            self._check(name, found.get(name), source)
        for name, weight in found.items():
            self._store.write(name, weight.carrier)

    def _check(self, name: str, found: Weight | None, path: object) -> None:
        known = self._store.read(name) if name in self._store.names() else None
        if known is None or found is None:
            what = "no state" if found is None else "a state"
            raise ArtifactError(
                f"{path} has {what} called {name!r}, unlike the model.",
                why="it was saved from another model",
                fix="Load what state.save wrote for this one.",
            )
        if (known.dtype, known.carrier.shape) != (found.dtype, found.carrier.shape):
            raise ArtifactError(
                f"{name!r} is {_kind(found)} in {path}, and {_kind(known)} in the model.",
                why="it was saved from another model",
                fix="Load what state.save wrote for this one.",
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names())

    def __len__(self) -> int:
        return len(self._store.names())


def _kind(weight: Weight) -> str:
    return f"{weight.dtype}{list(weight.carrier.shape)}"


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
