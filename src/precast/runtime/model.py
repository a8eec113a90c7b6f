"""A model ready to be called: entries by name, arrays in, arrays out."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.artifact.manifest import EntryDescription, TensorDescription, parse_entry
from precast.artifact.weights import Weight
from precast.errors import InputValueError
from precast.runtime.native import FallbackFunction, NativeLibrary, OpenModel, load_library
from precast.runtime.onednn import preload
from precast.runtime.tensors import (
    DTYPES,
    CTensor,
    PackedTensors,
    Tensor,
    allocate,
    as_tensor,
    is_torch_tensor,
    pack_tensors,
)


@dataclass(frozen=True)
class Entry:
    """One callable program of a model. Tensors come back as numpy arrays, or as torch's where inputs were torch's."""

    model: OpenModel
    number: int
    description: EntryDescription

    @property
    def name(self) -> str:
        return self.description.name

    def __call__(self, *arguments: object) -> tuple[Tensor, ...]:
        expected = self.description.inputs
        if len(arguments) != len(expected):
            raise InputValueError(
                f"entry {self.name!r} takes {len(expected)} tensors, got {len(arguments)}",
                why=f"its inputs are {', '.join(each.name for each in expected) or 'none'}",
                fix="pass one tensor for each, in this order",
            )
        tensors = [as_tensor(value, name=each.name) for value, each in zip(arguments, expected, strict=True)]
        return self.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]:
        """Call with tensors that are known to be as many as the entry takes; torch's come back if asked for."""
        inputs = pack_tensors(tensors)
        results = [self._allocate(each, layout, like_torch)
                   for each, layout in zip(self.description.outputs, self._layouts(inputs), strict=True)]  # fmt: skip
        self.model.run(self.number, inputs, pack_tensors(results))
        return tuple(results)

    def _layouts(self, inputs: PackedTensors) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
        outputs = self.description.outputs
        fixed = [each.fixed_layout for each in outputs]
        if all(layout is not None for layout in fixed):
            return [layout for layout in fixed if layout is not None]
        ranks = [len(each.shape) for each in outputs]
        shapes, strides = ([(ctypes.c_int64 * rank)() for rank in ranks] for _ in range(2))
        inferred = (CTensor * len(outputs))(
            *(CTensor(shape=shape, strides=stride) for shape, stride in zip(shapes, strides, strict=True))
        )
        self.model.infer(self.number, inputs, inferred)
        return [(list(shape), list(stride)) for shape, stride in zip(shapes, strides, strict=True)]

    def _allocate(
        self, each: TensorDescription, layout: tuple[Sequence[int], Sequence[int]], like_torch: bool
    ) -> Tensor:
        code, bits, _ = DTYPES[each.dtype]
        return allocate((code, bits), *layout, like_torch=like_torch)


class Model(Mapping[str, Entry]):
    """Entries by name, over one set of weights: ``model["forward"](x)``."""

    def __init__(self, opened: OpenModel, descriptions: Sequence[EntryDescription]):
        self._entries = {each.name: Entry(opened, number, each) for number, each in enumerate(descriptions)}

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def open_library(
    path: Path,
    *,
    needs: tuple[str, ...] = (),
    weights: Mapping[str, Tensor | Weight] | None = None,
    fallback: FallbackFunction | None = None,
) -> Model:
    """Open a model library that this machine built, in process."""
    preload(needs)
    return open_model(load_library(path), weights=weights or {}, fallback=fallback)


def open_model(
    library: NativeLibrary, *, weights: Mapping[str, Tensor | Weight], fallback: FallbackFunction | None = None
) -> Model:
    opened = OpenModel(library, weights, fallback)
    return Model(opened, [parse_entry(text) for text in opened.descriptions()])
