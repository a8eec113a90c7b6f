"""Several programs over one set of weights: what is the same tensor is stored once, and is one piece of state.

Before: two documents, each with its own table of tensors over its own storages
After:  one set of storages, documents that refer to it, and the model's state with each program's names for it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precast.artifact.package import whole_weight
from precast.artifact.schema import Json
from precast.artifact.weights import Weight
from precast.errors import InputValueError
from precast.export.serialize.document import Document
from precast.export.serialize.schema import CONSTANTS, EXAMPLES, STATE

_NATIVE_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip


@dataclass
class SharedStorages:
    """Collects the storages and the state of one program after the other.

    ``weights``: storages by name. ``state``: the model's tensors by name, as the manifest has them.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    examples: dict[str, Weight] = field(default_factory=dict)
    state: dict[str, Json] = field(default_factory=dict)

    def add(self, entry: str, document: Document) -> tuple[dict[str, Json], dict[str, str]]:
        """The document's content over the shared storages, and its names for the state → the model's.

        Tensors of dtypes that native code does not have are no part of the model's state: only torch can read them.
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
            if member in (STATE, CONSTANTS) and record["dtype"] in _NATIVE_DTYPES
        }
        return {**document.content, "tensors": records}, names

    def add_number(self, name: str) -> None:
        """One more piece of state: a whole number, which starts at 0."""
        weight = Weight("i64", np.zeros((), np.int64))
        self.weights[name] = weight
        self.state[name] = whole_weight(name, weight)

    def _store(self, entry: str, member: str, name: str, weight: Weight) -> str:
        """Keep a storage, unless it is there; gives its path."""
        home = self.examples if member == EXAMPLES else self.weights
        path = EXAMPLES if member == EXAMPLES else STATE
        for known, other in home.items():
            if _is_same_memory(weight, other) or (known == name and _has_same_content(weight, other)):
                return f"{path}/{known}"
        kept = name if name not in home else f"{entry}.{name}"
        assert kept not in home, f"two storages are called {kept}"
        home[kept] = weight
        return f"{path}/{kept}"

    def _name(self, entry: str, name: str, record: Any) -> str:
        made = _state_record(record)
        for known, other in self.state.items():
            if other == made:
                return known
        kept = name if name not in self.state else f"{entry}.{name}"
        self.state[kept] = made
        return kept


def _state_record(record: Mapping[str, Any]) -> Json:
    return {
        "storage": record["storage"].partition("/")[2],
        "dtype": _NATIVE_DTYPES[record["dtype"]],
        "shape": record["shape"],
        "strides": record["strides"],
        "offset": record["offset"],
    }


def _is_same_memory(one: Weight, other: Weight) -> bool:
    arrays = (one.carrier, other.carrier)
    starts = [array.__array_interface__["data"][0] for array in arrays]
    sizes = [array.nbytes for array in arrays]
    return one.dtype == other.dtype and starts[0] == starts[1] and sizes[0] == sizes[1] > 0


def _has_same_content(one: Weight, other: Weight) -> bool:
    a, b = one.carrier, other.carrier
    same_kind = (one.dtype, a.shape) == (other.dtype, b.shape)
    return same_kind and bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def refuse_shared_updates(state: Mapping[str, Json], updated: set[str]) -> None:
    """A tensor that calls update must not share memory with another: the other would not see the update."""
    records: Any = state
    for name in sorted(updated):
        others = [other for other in records if other != name and records[other]["storage"] == records[name]["storage"]]
        if others:
            raise InputValueError(
                f"{name!r} is updated, and shares its memory with {others[0]!r}.",
                why="in a packaged model, every tensor that is updated has memory of its own",
                fix="Give one of the two memory of its own, for example with clone().",
            )
