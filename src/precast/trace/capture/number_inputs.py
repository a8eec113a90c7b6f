"""Changing Python state as inputs of a program: numbers, and tensors whose sizes change.

Ints are passed as sizes of empty tensors, since sizes may be symbols.

Before: ``step(x, 7)``, and a module whose ``calls`` is 3 and whose ``scale`` is 0.5
After:  ``step(x, empty[9, 0])`` and two more inputs, ``empty[5, 0]`` and ``tensor(0.5)``; while tracing, ints are
        symbols minus two, and floats are read from their tensors

Before: a module whose ``cache`` grows by a row at each call
After:  one more input, which is assigned to the module while it is traced
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from precast.trace.state.places import MISSING, Place

# Sizes 0 and 1 are always specialized.
_LEAST_SIZE = 2


def is_number(value: Any) -> bool:
    """Whether a value can be passed as a tensor."""
    return type(value) is float or (type(value) is int and value >= 0)


def as_input(value: Any) -> Any:
    """A number as a tensor; any other value unchanged."""
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return torch.empty((value + _LEAST_SIZE, 0), device="cpu") if is_number(value) else value


def of_input(tensor: Any) -> Any:
    """The number that an input stands for, or a symbol for it."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.shape[0] - _LEAST_SIZE if tensor.dim() else tensor.item()


@dataclass(frozen=True)
class NumberInputs:
    """Which numbers are inputs: ``leaves`` of the call, by position, and those in ``places``, after the leaves.

    The tensors in the places ``tensors`` come last, unchanged.
    """

    leaves: frozenset[int] = frozenset()
    places: tuple[Place, ...] = ()
    tensors: tuple[Place, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.leaves or self.places or self.tensors)

    @property
    def all_places(self) -> tuple[Place, ...]:
        return (*self.places, *self.tensors)

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves with numbers as tensors, followed by the contents of the places."""
        found = [as_input(leaf) if number in self.leaves else leaf for number, leaf in enumerate(leaves)]
        return [*found, *self.read_inputs()]

    def read_inputs(self) -> list[Any]:
        """The current contents of the places, as inputs; None for a place that is gone."""
        return [*(as_input(_read(place)) for place in self.places), *map(_read, self.tensors)]

    def leaves_of(self, inputs: Sequence[Any]) -> list[Any]:
        """The leaves of a call from its inputs, with numbers or symbols."""
        leaves = inputs[: len(inputs) - len(self.all_places)]
        return [of_input(leaf) if number in self.leaves else leaf for number, leaf in enumerate(leaves)]

    @contextmanager
    def put(self, inputs: Sequence[Any]) -> Iterator[None]:
        """While active, the places that exist hold the numbers, symbols and tensors of these inputs."""
        before = [(place, value) for place in self.all_places if (value := _read(place, _GONE)) is not _GONE]
        given = inputs[len(inputs) - len(self.all_places) :]
        there = {id(place) for place, _ in before}
        try:
            for number, (place, value) in enumerate(zip(self.all_places, given, strict=True)):
                if id(place) in there:
                    place.write(of_input(value) if number < len(self.places) else value)
            yield
        finally:
            for place, value in before:
                place.write(value)


_GONE = object()


def _read(place: Place, otherwise: object = None) -> Any:
    try:
        return place.read()
    except MISSING:
        return otherwise
