"""A model ready to be called: entries by name, arrays in, arrays out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from precast.artifact.calls import CallDescription
from precast.artifact.manifest import EntryDescription, TensorDescription, parse_entry
from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputValueError
from precast.runtime.call import checked_leaves, result_of, write_back
from precast.runtime.native import FallbackFunction, OpenModel, load_library
from precast.runtime.onednn import preload
from precast.runtime.state import NativeState, State
from precast.runtime.tensors import (
    DTYPES,
    CTensor,
    PackedTensors,
    Tensor,
    allocate,
    allocate_array,
    as_tensor,
    is_torch_tensor,
    pack_tensors,
)
from precast.runtime.verification import SampleCheck


@dataclass(frozen=True)
class Entry:
    """One program of a library on flat tensors: numpy arrays come back, or torch's where inputs were torch's."""

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

    def run_bits(self, tensors: Sequence[Weight]) -> tuple[Weight, ...]:
        """Call with tensors as their bits, and get them so: numpy has no bfloat16 to say it with."""
        inputs = pack_tensors(tensors)
        results = [Weight(each.dtype, allocate_array(weight_carrier(each.dtype), *layout))
                   for each, layout in zip(self.description.outputs, self._layouts(inputs), strict=True)]  # fmt: skip
        self.model.run(self.number, inputs, pack_tensors(results))
        return tuple(results)

    @cached_property
    def _fixed_layouts(self) -> Sequence[tuple[Sequence[int], Sequence[int]]] | None:
        """Sizes and strides of the outputs, if all are the same in every call."""
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
        code, bits, _ = DTYPES[each.dtype]
        return allocate((code, bits), *layout, like_torch=like_torch)


class Runnable(Protocol):
    """What computes an entry: compiled code, or torch that interprets the program."""

    @property
    def description(self) -> EntryDescription: ...

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class ModelEntry:
    """One program of a model, called as the original was; calls are checked first."""

    runnable: Runnable
    call: CallDescription

    @property
    def name(self) -> str:
        return self.runnable.description.name

    @property
    def description(self) -> EntryDescription:
        return self.runnable.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call
        leaves, sizes = checked_leaves(call, args, kwargs)
        given = [leaves[number] for number in call.tensor_leaves]
        tensors = [as_tensor(value, name=path) for path, value in given]
        outputs = self.runnable.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))
        write_back(call, leaves, outputs)
        return result_of(call, outputs, sizes)


class Model:
    """A loaded model: call it, or one of its entries by name; the entries share one state.

    Any number of threads may call one model at the same time.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry | Entry],
        state: State,
        *,
        verifier: Callable[[], tuple[SampleCheck, ...]] | None = None,
        target: str | None = None,
    ):
        self._entries = {entry.name: entry for entry in entries}
        self._state = state
        self._verifier = verifier
        self._target = target

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries, in the order in which they were packaged."""
        return tuple(self._entries)

    @property
    def state(self) -> State:
        """Weights and buffers by name; calls read them, and those that update buffers write them."""
        return self._state

    @property
    def target(self) -> str | None:
        """Which of the file's native code runs; ``None`` where no file's does."""
        return self._target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the entry ``forward``, or the first where there is none."""
        name = "forward" if "forward" in self._entries else next(iter(self._entries))
        return self._entries[name](*args, **kwargs)

    def __getitem__(self, name: str) -> ModelEntry | Entry:
        if name not in self._entries:
            raise KeyError(f"the model has no entry {name!r}; it has {', '.join(self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def verify(self) -> tuple[SampleCheck, ...]:
        """Check every hash in the file, and run its samples here, on the state that it was packaged with.

        Gives what was compared; an ``ArtifactError`` tells what differs.
        """
        if self._verifier is None:
            raise InputValueError(
                "This model has nothing to verify.",
                why="it was not loaded from a file, and only files hold hashes and samples",
                fix="Package it with precast.package, and load that.",
            )
        return self._verifier()


def open_library(
    path: Path,
    *,
    needs: tuple[str, ...] = (),
    weights: Mapping[str, Tensor | Weight] | None = None,
    fallback: FallbackFunction | None = None,
) -> Model:
    """Open a model library that this machine built, in process."""
    preload(needs)
    opened = OpenModel(load_library(path), weights or {}, fallback)
    return Model(flat_entries(opened), State(NativeState(opened)))


def flat_entries(opened: OpenModel) -> list[Entry]:
    """The entries of an opened library, as it describes them."""
    return [Entry(opened, number, parse_entry(text)) for number, text in enumerate(opened.descriptions())]
