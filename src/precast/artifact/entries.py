"""What one entry of a model takes and gives, as its library and the manifest describe it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from precast.artifact.schema import ANYTHING, NOTHING, Count, ListOf, OneOf, Shape, Text, damaged, parse_json

MAX_RANK = 16
MANY = 100_000
NAME = Text(r"[^\x00-\x1f]{1,1024}")
DTYPE = Text(r"f64|f32|f16|bf16|i64|i32|i16|i8|u8|bool")
_SIZE = OneOf((Count(), Text(r"[\w */%()+,-]{1,1000}")))
_TENSOR: Shape = {
    "name": NAME,
    "dtype": DTYPE,
    "shape": ListOf(_SIZE, MAX_RANK),
    "strides": ListOf(_SIZE, MAX_RANK),
}
_TENSORS = ListOf(_TENSOR, MANY)
ENTRY_SHAPE: Shape = {
    "name": NAME,
    "inputs": _TENSORS,
    "weights": _TENSORS,
    "outputs": _TENSORS,
    "updates": _TENSORS,
    "sizes": ListOf(
        {
            "name": Text(r"\w{1,100}"),
            "input": Count(MANY),
            "dimension": OneOf((Count(MAX_RANK), NOTHING)),
            "factor": Count(),
            "offset": ANYTHING,
            "range": ListOf(OneOf((Count(), NOTHING)), 2),
        },
        10_000,
    ),
}


@dataclass(frozen=True)
class TensorDescription:
    """An input, weight or output; a size that is text is an expression of the entry's dynamic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]

    @cached_property
    def fixed_layout(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Sizes and strides, if they are the same in every call."""
        numbers = tuple(each for each in (*self.shape, *self.strides) if isinstance(each, int))
        rank = len(self.shape)
        return (numbers[:rank], numbers[rank:]) if len(numbers) == 2 * rank else None


class EntryDescription(NamedTuple):
    """What one entry takes and gives, and what it updates of the model's state."""

    name: str
    inputs: tuple[TensorDescription, ...]
    weights: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    updates: tuple[TensorDescription, ...] = ()


def parse_entry(text: str | bytes, *, is_checked: bool = True) -> EntryDescription:
    """An entry's description as the C interface gives it; one from code that this machine made need not be checked."""
    content = parse_json(text, ENTRY_SHAPE, name="the entry's description") if is_checked else json.loads(text)
    return entry_description(content)


def entry_description(content: Any) -> EntryDescription:
    """An entry as checked data describes it."""
    tensors = {kind: tuple(map(_tensor, content[kind])) for kind in ("inputs", "weights", "outputs", "updates")}
    return EntryDescription(content["name"], **tensors)


def _tensor(content: Any) -> TensorDescription:
    if len(content["shape"]) != len(content["strides"]):
        raise damaged(
            f"tensor {content['name']!r} has another number of strides than of sizes", "each size has its stride"
        )
    return TensorDescription(content["name"], content["dtype"], tuple(content["shape"]), tuple(content["strides"]))
