"""One program of an open library, called with flat tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

from precast.artifact.dtypes import DTYPES
from precast.artifact.manifest import EntryDescription, TensorDescription, parse_entry
from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputValueError
from precast.runtime.libraries import preload
from precast.runtime.native import FallbackFunction, OpenModel, load_library
from precast.runtime.tensors import (
    CTensor,
    PackedTensors,
    RepeatedTensors,
    Tensor,
    TorchResults,
    allocate,
    allocate_array,
    are_bits,
    as_in_memory,
    as_tensor,
    filled_part,
    is_torch_tensor,
    pack_tensors,
    pack_with_room,
    with_bits,
    without_bits,
)

AnyTensor = TypeVar("AnyTensor", Tensor, Weight, Tensor | Weight)


@dataclass(frozen=True, repr=False)
class Entry:
    """One entry of a library, called with flat tensors; results are numpy arrays, or torch tensors if inputs are."""

    on_gpu: ClassVar[bool] = False

    model: OpenModel
    number: int
    description: EntryDescription

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.description.inputs, self.description.outputs))
        return f"{self.name}({inputs}) -> ({outputs})"

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
        given = [as_tensor(value, name=each.name) for value, each in zip(arguments, expected, strict=True)]
        tensors = list(map(as_in_memory, given))
        return self.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]:
        """Call with the right number of tensors, without checking that; results are torch tensors on request."""
        if self._has_bfloat16 and not (like_torch and all(map(is_torch_tensor, tensors))):
            return self._run_with_bits(tensors, like_torch=like_torch)
        inputs = self._inputs.pack(tensors)
        if like_torch and self._torch_results is not None:
            results, outputs = self._torch_results.make()
        else:
            layouts = zip(self.description.outputs, self._layouts(inputs), strict=True)
            return self._filled(inputs, [self._allocate(each, layout, like_torch) for each, layout in layouts])
        self.model.run(self.number, inputs, outputs)
        return tuple(results)

    def _filled(self, inputs: PackedTensors, results: Sequence[AnyTensor]) -> tuple[AnyTensor, ...]:
        """The results once the program has written them; of data-dependent size, only the part that it wrote."""
        if not self.description.finds_sizes:
            self.model.run(self.number, inputs, pack_tensors(results))
            return tuple(results)
        outputs, layouts = pack_with_room(results)
        self.model.run(self.number, inputs, outputs)
        return tuple(filled_part(result, layout) for result, layout in zip(results, layouts, strict=True))  # type: ignore[misc]

    def _run_with_bits(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]:
        """The same with numpy arrays of bits in place of bfloat16."""
        types = [each.dtype for each in self.description.inputs]
        inputs = pack_tensors([with_bits(each, dtype) for each, dtype in zip(tensors, types, strict=True)])
        results = [
            Weight(each.dtype, allocate_array(weight_carrier(each.dtype), *layout))
            if each.dtype == "bf16" and not like_torch
            else self._allocate(each, layout, like_torch)
            for each, layout in zip(self.description.outputs, self._layouts(inputs), strict=True)
        ]
        return tuple(without_bits(each, as_bits=are_bits(tensors)) for each in self._filled(inputs, results))

    @cached_property
    def _has_bfloat16(self) -> bool:
        return any(each.dtype == "bf16" for each in (*self.description.inputs, *self.description.outputs))

    def run_bits(self, tensors: Sequence[Weight]) -> tuple[Weight, ...]:
        """Call with tensors as raw bits and return raw bits, since numpy has no bfloat16."""
        inputs = pack_tensors(tensors)
        results = [Weight(each.dtype, allocate_array(weight_carrier(each.dtype), *layout))
                   for each, layout in zip(self.description.outputs, self._layouts(inputs), strict=True)]  # fmt: skip
        return self._filled(inputs, results)

    @cached_property
    def _inputs(self) -> RepeatedTensors:
        return RepeatedTensors()

    @cached_property
    def _torch_results(self) -> TorchResults | None:
        if self._fixed_layouts is None:
            return None
        codes = [DTYPES[each.dtype][:2] for each in self.description.outputs]
        return TorchResults([(code, *layout) for code, layout in zip(codes, self._fixed_layouts, strict=True)])

    @cached_property
    def _fixed_layouts(self) -> Sequence[tuple[Sequence[int], Sequence[int]]] | None:
        """Sizes and strides of the outputs, if they are the same in every call."""
        fixed = [layout for each in self.description.outputs if (layout := each.fixed_layout) is not None]
        return fixed if len(fixed) == len(self.description.outputs) else None

    def _layouts(self, inputs: PackedTensors) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
        if self._fixed_layouts is not None:
            return self._fixed_layouts
        outputs = self.description.outputs
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
        return allocate(DTYPES[each.dtype][:2], *layout, like_torch=like_torch)


def library_entries(
    path: Path,
    *,
    needs: tuple[str, ...] = (),
    weights: Mapping[str, Tensor | Weight] | None = None,
    fallback: FallbackFunction | None = None,
) -> list[Entry]:
    """The entries of a model library that this machine built."""
    preload(needs)
    return flat_entries(OpenModel(load_library(path), weights or {}, fallback), is_checked=False)


def flat_entries(opened: OpenModel, *, is_checked: bool = True) -> list[Entry]:
    """The entries of an open library, as it describes them; libraries from elsewhere are checked."""
    descriptions = [parse_entry(text, is_checked=is_checked) for text in opened.descriptions()]
    return [Entry(opened, number, description) for number, description in enumerate(descriptions)]
