"""Several programs over one set of weights: each distinct tensor is stored once, and is one piece of state.

Before: two documents, each with its own table of tensors over its own storages
After:  one set of storages, documents that refer to it, and the model's state with each program's names for it
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from precast.artifact.dtypes import SHORT_NAMES
from precast.artifact.package import whole_weight
from precast.artifact.schema import Json
from precast.artifact.weights import Weight
from precast.errors import InputValueError
from precast.export.serialize.document import Document
from precast.export.serialize.schema import CONSTANTS, EXAMPLES, STATE
from precast.native.describe import Entry
from precast.packaging.samples import as_weight


@dataclass
class SharedStorages:
    """Collects the storages and the state of one program after the other.

    ``weights``: storages by name. ``state``: the model's tensors by name, as in the manifest.
    ``first_seed``: the initial random seed.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    examples: dict[str, Weight] = field(default_factory=dict)
    state: dict[str, Json] = field(default_factory=dict)
    first_seed: int = 0
    _numbers: set[str] = field(default_factory=set)
    _computed: dict[tuple[object, ...], str] = field(default_factory=dict)
    # Storages are identified by address, which must not be reused: those seen stay alive.
    _seen: list[Weight] = field(default_factory=list)
    _paths: dict[tuple[object, ...], str] = field(default_factory=dict)
    _names: dict[tuple[object, ...], str] = field(default_factory=dict)

    def add(self, entry: str, document: Document) -> tuple[dict[str, Json], dict[str, str]]:
        """The document's content over the shared storages, and its names for the state → the model's.

        Tensors of dtypes that native code does not support are not part of the model's state: only torch can read them.
        """
        moved = {
            f"{member}/{name}": self._store(entry, member, name, weight)
            for member, weights in document.members.items()
            for name, weight in weights.items()
        }
        table: Any = document.content["tensors"]
        records: dict[str, Any] = {
            path: {**record, "storage": moved[record["storage"]]} for path, record in table.items()
        }
        names = {
            name: self._name(entry, name, record)
            for path, record in records.items()
            for member, _, name in [path.partition("/")]
            if member in (STATE, CONSTANTS) and record["dtype"] in SHORT_NAMES
        }
        return {**document.content, "tensors": records}, names

    def add_seed(self, name: str) -> None:
        """Add the random seed to the state; entries may share it."""
        if name in self._numbers:
            return
        if name in self.state or name in self.weights:
            raise InputValueError(
                f"The model has a tensor of its own called {name!r}.",
                why="a packaged model uses this name for the seed of its random numbers",
                fix="Give the tensor another name in the module.",
            )
        weight = Weight("i64", np.array(self.first_seed, np.int64))
        self._numbers.add(name)
        self.weights[name] = weight
        self.state[name] = whole_weight(name, weight)

    def add_computed(self, tensor: torch.Tensor) -> str:
        """Add a computed constant under a generated name; equal ones are stored once."""
        # `empty_like` preserves only dense strides.
        is_dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
        dense = tensor if is_dense else tensor.contiguous()
        weight = as_weight(dense.as_strided((dense.numel(),), (1,)))
        content = hashlib.sha256(weight.carrier.tobytes()).hexdigest()
        key = (content, weight.dtype, tuple(dense.shape), dense.stride())
        if key not in self._computed:
            name = f"folded.{len(self._computed)}"
            while name in self.state or name in self.weights:
                name = f"{name}_"
            self.weights[name], self._computed[key] = weight, name
            place: dict[str, Json] = {"shape": list(dense.shape), "strides": list(dense.stride()), "offset": 0}
            self.state[name] = {"storage": name, "dtype": weight.dtype, **place}
        return self._computed[key]

    def used_by(self, entry: Entry) -> SharedStorages:
        """The storages that an entry's native code reads."""
        names = {*entry.weights.values(), *entry.updates.values()}
        state: dict[str, Any] = {name: record for name, record in self.state.items() if name in names}
        homes = {record["storage"] for record in state.values()}
        return SharedStorages({name: weight for name, weight in self.weights.items() if name in homes}, {}, state)

    def _store(self, entry: str, member: str, name: str, weight: Weight) -> str:
        """Add a storage, unless it is there; returns its path."""
        home, folder = (self.examples, EXAMPLES) if member == EXAMPLES else (self.weights, STATE)
        start = weight.carrier.__array_interface__["data"][0]
        # Addresses of empty tensors mean nothing: these are identified by name.
        memory = (folder, weight.dtype, weight.carrier.nbytes, start if weight.carrier.nbytes else name)
        self._seen.append(weight)
        if memory not in self._paths:
            kept = name
            if name in home and not _has_same_content(weight, home[name]):
                kept = f"{entry}.{name}"
            assert kept == name or kept not in home, f"two storages are called {kept}"
            home.setdefault(kept, weight)
            self._paths[memory] = f"{folder}/{kept}"
        return self._paths[memory]

    def _name(self, entry: str, name: str, record: Any) -> str:
        """The model's name for a tensor; a different tensor of the same name is prefixed with the entry's."""
        made: Any = _state_record(record)
        place = tuple(tuple(part) if isinstance(part, list) else part for part in made.values())
        if place not in self._names:
            kept = name if name not in self.state else f"{entry}.{name}"
            self.state[kept] = made
            self._names[place] = kept
        return self._names[place]


def _state_record(record: Mapping[str, Any]) -> Json:
    return {
        "storage": record["storage"].partition("/")[2],
        "dtype": SHORT_NAMES[record["dtype"]],
        "shape": record["shape"],
        "strides": record["strides"],
        "offset": record["offset"],
    }


def _has_same_content(one: Weight, other: Weight) -> bool:
    a, b = one.carrier, other.carrier
    same_kind = (one.dtype, a.shape) == (other.dtype, b.shape)
    return same_kind and bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def refuse_shared_updates(state: Mapping[str, Json], updated: set[str]) -> None:
    """Refuse an updated tensor that shares memory with another, which would not see the update."""
    records: Any = state
    for name in sorted(updated):
        others = [other for other in records if other != name and records[other]["storage"] == records[name]["storage"]]
        if others:
            raise InputValueError(
                f"{name!r} is updated, and shares its memory with {others[0]!r}.",
                why="in a packaged model, every tensor that is updated has memory of its own",
                fix="Give one of the two memory of its own, for example with clone().",
            )
