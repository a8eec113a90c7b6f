"""Weights in safetensors layout: a length, a JSON header, then the tensors one after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from precast.artifact.dtypes import DTYPES
from precast.artifact.schema import Count, ListOf, MapOf, Shape, Text, damaged, parse_json

ALIGNMENT = 64
MAX_HEADER = 64 * 1024 * 1024
_HEADER: Shape = MapOf(
    Text(r"[^\x00-\x1f]{1,1024}"),
    {"dtype": Text("|".join(DTYPES).upper()), "shape": ListOf(Count(2**48), 16), "data_offsets": ListOf(Count(), 2)},
    1_000_000,
)


def is_addressable(shape: Sequence[int], item_size: int) -> bool:
    """Whether numpy and torch can represent an array of this shape, even if it has no elements."""
    return prod(max(size, 1) for size in shape) * item_size < 2**62


class Weight(NamedTuple):
    """A tensor's bytes, row-major; `carrier` is a numpy array of its bits (bf16 as 16-bit integers)."""

    dtype: str
    carrier: np.ndarray[Any, np.dtype[Any]]


class Block(NamedTuple):
    """A tensor in the layout: the layout's name of its dtype, its sizes, and its bytes."""

    dtype: str
    shape: Sequence[int]
    data: bytes | memoryview


def weight_pieces(weights: Mapping[str, Weight]) -> list[bytes | memoryview]:
    """The header, then each weight's own memory; larger elements first, so that each is aligned to its size."""
    order = sorted(weights, key=lambda name: (-DTYPES[weights[name].dtype].item_size, name))
    return safetensors_pieces({name: _block(weights[name]) for name in order})


def _block(weight: Weight) -> Block:
    data = np.ascontiguousarray(weight.carrier).reshape(-1).view(np.uint8).data
    return Block(weight.dtype.upper(), weight.carrier.shape, data)


def safetensors_pieces(blocks: Mapping[str, Block], **notes: object) -> list[bytes | memoryview]:
    """The header of these tensors, with further metadata, then each tensor's own memory, in this order."""
    header: dict[str, object] = dict(notes)
    position = 0
    for name, block in blocks.items():
        end = position + len(block.data)
        header[name] = {"dtype": block.dtype, "shape": list(block.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *(block.data for block in blocks.values())]


def read_weights(data: memoryview) -> dict[str, Weight]:
    """Arrays over `data`, without copying; every offset is checked first."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER, len(data) - 8):
        raise damaged("the weights have a wrong header", f"it claims {length} bytes of {len(data)}")
    header: Any = parse_json(bytes(data[8 : 8 + length]), _HEADER, name="the header of the weights")
    body = data[8 + length :]
    weights: dict[str, Weight] = {}
    end = 0
    for name, record in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        short = record["dtype"].lower()
        size = DTYPES[short].item_size
        start, stop = record["data_offsets"] if len(record["data_offsets"]) == 2 else (0, -1)
        fits = stop - start == prod(record["shape"]) * size and is_addressable(record["shape"], size)
        if start != end or not fits or stop > len(body):
            raise damaged(f"the weight {name!r} is outside the data or does not follow the one before", "wrong offsets")
        flat = np.frombuffer(body[start:stop], dtype=weight_carrier(short))
        weights[name] = Weight(short, flat.reshape(record["shape"]))
        end = stop
    return weights


def weight_carrier(dtype: str) -> np.dtype[Any]:
    """Numpy's type for the bits of a tensor of that dtype."""
    return np.dtype(DTYPES[dtype].carrier)
