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
    """Where a model's state is stored: an open library, or torch's tensors."""

    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str) -> Weight: ...

    def write(self, name: str, value: Tensor) -> None: ...


class State(MutableMapping[str, Any]):
    """Named tensors. Reading returns a copy as a numpy array; writing accepts any tensor of the same dtype and shape.

    Numpy has no bfloat16: such tensors are read as bits in ``uint16``, and written as bits or as
    ``ml_dtypes.bfloat16``.
    """

    def __init__(self, store: StateStore):
        self._store = store

    def __getitem__(self, name: str) -> Array:
        if name not in self._store.names():
            names = self._store.names()
            few = [*names[:8], "…"] if len(names) > 8 else names
            raise KeyError(f"the model has no state {name!r}; it has {', '.join(few) or 'none'}")
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
        """Write all tensors to a safetensors file, atomically."""
        write_file(Path(path), weight_pieces(self.weights()))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a file that ``save`` wrote; if it does not fit, nothing is changed."""
        try:
            found = read_weights(memoryview(Path(path).read_bytes()))
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise ArtifactError(f"{path} cannot be read", why=why, fix="check the path") from problem
        self.take(found, os.fspath(path))

    def weights(self) -> dict[str, Weight]:
        """Return copies of all tensors as raw bits."""
        return {name: self._store.read(name) for name in self._store.names()}

    def take(self, found: Mapping[str, Weight], source: str) -> None:
        """Set all tensors; if one does not fit, none is changed. ``source`` names their file in errors."""
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
    """The state of an open library."""

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
