"""Identities of containers in a program's results and writes: existing ones, and new ones in more than one place.

Before: ``self.front, self.back = self.back, self.front``; ``made = [h]; self.kept = made; return made``
After:  ``KeptContainer`` stands for a list that existed before, ``SharedContainer`` for the one that was made
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from precast.errors import CaptureError
from precast.graph.opened_objects import opened
from precast.trace.capture.argument_containers import ArgumentContainer, WatchedContainers, children_of
from precast.trace.state.places import Place


@dataclass(frozen=True)
class KeptContainer:
    """A container, or another object, that was in Python state before the call, by its place."""

    home: Place

    def read(self) -> Any:
        return self.home.read()


@dataclass(frozen=True)
class SharedContainer:
    """A container that the program created and put into several places, by its number."""

    number: int


Reference = ArgumentContainer | KeptContainer | SharedContainer


def with_shared(leaves: Iterable[Any], made: Sequence[Any]) -> list[Any]:
    """The leaves with each ``SharedContainer`` replaced by its container."""
    return [made[leaf.number] if isinstance(leaf, SharedContainer) else leaf for leaf in leaves]


class References:
    """The containers among the results of a program that are not opened, because their identity matters."""

    def __init__(self, arguments: WatchedContainers, homes: Mapping[int, Place], values: Any) -> None:
        self._arguments = arguments
        self._homes = homes
        self._met: set[int] = set()
        self._repeated: set[int] = set()
        made = list(self._closed(values, ()))
        self.shared = [each for each in made if id(each) in self._repeated]
        """The new containers in more than one place, inner ones first."""
        self._numbers = {id(each): number for number, each in enumerate(self.shared)}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._numbers or self._is_old(value)

    def _is_old(self, value: Any) -> bool:
        return value in self._arguments or id(value) in self._homes

    def _closed(self, value: Any, around: tuple[int, ...]) -> Iterator[Any]:
        """All new containers in a value, inner ones first."""
        if self._is_old(value) or (children := children_of(value)) is None:
            return
        if not isinstance(value, tuple):
            if id(value) in around:
                raise CaptureError(
                    "The program makes a container that holds itself.",
                    why="a captured program makes new results at each call, and would have no end here",
                    fix="Keep the container outside, or without a reference to itself.",
                )
            if id(value) in self._met:
                self._repeated.add(id(value))
                return
            self._met.add(id(value))
            around = (*around, id(value))
        for child in children:
            yield from self._closed(child, around)
        if not isinstance(value, tuple):
            yield value

    def stand_in(self, value: Any) -> Any:
        """The reference to one of these containers; any other value unchanged."""
        if (number := self._numbers.get(id(value))) is not None:
            return SharedContainer(number)
        value = self._arguments.stand_in(value)
        return KeptContainer(self._homes[id(value)]) if id(value) in self._homes else value

    def flatten(self, value: Any) -> tuple[list[Any], pytree.TreeSpec]:
        """The leaves and the tree of a value."""
        leaves, tree = pytree.tree_flatten(opened(value, self.__contains__), is_leaf=self.__contains__)
        return list(map(self.stand_in, leaves)), tree

    def flatten_inside(self, container: Any) -> tuple[list[Any], pytree.TreeSpec]:
        """The leaves and the tree of the contents of a shared container."""

        def is_leaf(value: Any) -> bool:
            return value is not container and value in self

        # An object is opened first, so that is_leaf sees its contents.
        leaves, tree = pytree.tree_flatten(opened(container, is_leaf), is_leaf=is_leaf)
        return list(map(self.stand_in, leaves)), tree
