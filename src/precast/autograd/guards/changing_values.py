"""Decides what becomes dynamic: Python numbers, tensors in the state, and sizes, once they change between calls.

Numbers, and tensors of the state that change their sizes, become inputs:

Before: ``denoise(x, 0)``, then ``denoise(x, 1)``; or a module that counts its calls
After:  from the second value on, one variant for all of them

Sizes that differ between compiled calls become symbols:

Before: calls with tensors of the sizes (1, 6) and (1, 6), then (1, 7) and (1, 7)
After:  one symbol, for the last size of both; a third call with (2, 8) and (2, 9) needs three symbols
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from precast.graph.opened_objects import is_wrapper
from precast.trace.capture.number_inputs import NumberInputs, is_number
from precast.trace.state.places import Place, home_of


def sizes_of_numbers(numbers: NumberInputs, leaves: Sequence[Any]) -> dict[tuple[int, int], str]:
    """A symbol for every number among the leaves of a call and after them."""
    end = len(leaves) - len(numbers.tensors)
    positions = [*numbers.leaves, *range(end - len(numbers.places), end)]
    return {
        (place, 0): f"number{place}"
        for place in positions
        if isinstance(leaves[place], torch.Tensor) and leaves[place].dim()
    }


class ChangingNumbers:
    """The numbers that are inputs so far; with ``from_start``, all numbers among the arguments are from the start."""

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self._met: dict[Any, list[list[Any]]] = {}
        self._found: dict[_Key, Place | int] = {}
        self._newest: dict[_Key, Place | int] = {}
        self._refused: set[_Key] = set()
        self._tensors: dict[_Key, Place] = {}

    def __bool__(self) -> bool:
        return bool(self._found or self._tensors)

    def inputs_of(self, tree: Any, leaves: Sequence[Any]) -> NumberInputs | None:
        """The number inputs of a call: among its leaves and in Python state; None if there are none."""
        if self._from_start and tree not in self._met:
            self._met[tree] = []
            self._add({(tree, number): number for number, leaf in enumerate(leaves) if is_number(leaf)})
        if not self:
            return None
        places = tuple(place for place in self._found.values() if isinstance(place, Place))
        positions = (each for (owner, _), each in self._found.items() if isinstance(each, int) and owner == tree)
        return NumberInputs(frozenset(positions), places, tuple(self._tensors.values())) or None

    def meet_tensors(self, places: Sequence[Place]) -> bool:
        """Note places with tensors that change their sizes; returns whether new ones became inputs."""
        new = {home_of(place): place for place in places if home_of(place) not in self._tensors}
        self._tensors |= new
        return bool(new)

    def meet(self, tree: Any, leaves: Sequence[Any], places: Sequence[Place]) -> bool:
        """Note a call that is about to be compiled, and changed places; returns whether new ones became inputs."""
        numbers = [leaf if is_number(leaf) else None for leaf in leaves]
        met = self._met.setdefault(tree, [])
        changing = {
            position
            for earlier in met
            for position, (old, new) in enumerate(zip(earlier, numbers, strict=True))
            if old is not None and type(old) is type(new) and old != new
        }
        met.append(numbers)
        new: dict[_Key, Place | int] = {(tree, position): position for position in changing}
        new |= {(id(place.holder), place.key): place for place in places}
        return self._add(new)

    def _add(self, new: Mapping["_Key", Place | int]) -> bool:
        self._newest = {
            key: number for key, number in new.items() if key not in self._found and key not in self._refused
        }
        self._found |= self._newest
        return bool(self._newest)

    def give_up(self) -> None:
        """Make numbers constants again, since they cannot be inputs: the newest ones, or else all."""
        refused = self._newest or dict(self._found)
        self._refused |= refused.keys()
        self._found = {key: number for key, number in self._found.items() if key not in refused}
        self._newest = {}


_Key = tuple[Any, Any]
"""An argument tree and a position, or the identity of a holder and a key in it."""


SizeRoots = Mapping[tuple[int, int], str]
"""The symbol of each dynamic size, by leaf and dimension; sizes that were always equal share one."""


def all_sizes(leaves: Sequence[Any]) -> SizeRoots:
    """A symbol for every size that is neither 0 nor 1, except those of wrapper subclasses."""
    return {
        (number, dimension): _name(number, dimension)
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and not is_wrapper(leaf)
        for dimension, size in enumerate(leaf.shape)
        if size >= 2
    }


class SizesMet:
    """The sizes of the compiled calls, by the rest of their key."""

    def __init__(self) -> None:
        self._met: dict[Any, list[list[tuple[int, ...]]]] = {}

    def changing(self, key: Any, leaves: Sequence[Any]) -> SizeRoots:
        """The sizes of these leaves that differ from an earlier call with the same ``key``."""
        met = self._met.setdefault(key, [])
        met.append([tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else () for leaf in leaves])
        names: dict[tuple[int, ...], str] = {}
        return {
            (number, dimension): names.setdefault(sizes, _name(number, dimension))
            for number, shapes in enumerate(zip(*met, strict=True))
            if not is_wrapper(leaves[number])
            for dimension, sizes in enumerate(zip(*shapes, strict=True))
            if len(set(sizes)) > 1
        }


def _name(leaf: int, dimension: int) -> str:
    return f"leaf{leaf}.shape[{dimension}]"
