"""Python numbers of an optimizer as state of a step, so that a program can take and return them.

Before: ``group["lr"] == 0.1``, which a schedule sets; ``state[p]["step"] == 7``, which the optimizer counts up itself
After:  buffers ``optimizer.groups.0.lr`` and ``optimizer.state.weight.step`` of one float64 each; symbols in a trace
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.optim import Optimizer


@dataclass(frozen=True)
class Counted:
    """What an optimizer's steps count up in Python: names in groups by position, in states, and its own attributes."""

    groups: frozenset[tuple[int, str]] = frozenset()
    states: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


NOTHING_COUNTED = Counted()
NUMBERS = (float, int, numpy.floating, numpy.integer)
FRACTIONS = (float, numpy.floating)


class Number(ABC):
    """A number and its location; ``path`` is its name in a step's state. ``counts``: each step updates it."""

    path: str
    name: str
    counts: bool

    @abstractmethod
    def read(self, optimizer: Optimizer) -> Any: ...

    @abstractmethod
    def write(self, optimizer: Optimizer, value: Any) -> None: ...

    def update(self, optimizer: Optimizer, buffer: torch.Tensor) -> None:
        """Store the updated value, in its Python type."""
        value = float(buffer)
        is_whole = isinstance(self.read(optimizer), int) and value.is_integer()
        self.write(optimizer, int(value) if is_whole else value)


@dataclass(frozen=True)
class GroupNumber(Number):
    """A number of a parameter group: ``group[name]``, or an item of it."""

    group: int
    name: str
    item: int | None = None
    counts: bool = False

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"groups.{self.group}.{self.name}" + ("" if self.item is None else f".{self.item}")

    def setting(self, optimizer: Optimizer) -> tuple[dict[str, Any], str, Any]:
        """The group, the name, and what is there now: this number, or several of which it is an item."""
        group = optimizer.param_groups[self.group]
        return group, self.name, group[self.name]

    def read(self, optimizer: Optimizer) -> Any:
        value = optimizer.param_groups[self.group][self.name]
        return value if self.item is None else value[self.item]

    def write(self, optimizer: Optimizer, value: Any) -> None:
        group = optimizer.param_groups[self.group]
        if self.item is not None:
            items = list(group[self.name])
            items[self.item] = value
            value = type(group[self.name])(items)
        group[self.name] = value


@dataclass(frozen=True, eq=False)
class StateNumber(Number):
    """A number of a parameter's state: ``state[parameter][name]``."""

    path: str
    parameter: torch.Tensor
    name: str
    counts: bool = True

    def read(self, optimizer: Optimizer) -> Any:
        return optimizer.state[self.parameter][self.name]

    def write(self, optimizer: Optimizer, value: Any) -> None:
        optimizer.state[self.parameter][self.name] = value


@dataclass(frozen=True)
class AttributeNumber(Number):
    """A number that is an attribute of the optimizer."""

    name: str
    counts: bool = True

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"attributes.{self.name}"

    def read(self, optimizer: Optimizer) -> Any:
        return getattr(optimizer, self.name)

    def write(self, optimizer: Optimizer, value: Any) -> None:
        setattr(optimizer, self.name, value)


def optimizers_numbers(optimizer: Optimizer, moving: frozenset[tuple[int, str]], counted: Counted) -> list[Number]:
    """Learning rates, other settings that a schedule was seen to change, and the optimizer's counters."""
    return [*_of_groups(optimizer, moving, counted), *map(AttributeNumber, sorted(counted.attributes))]


def _of_groups(optimizer: Optimizer, moving: frozenset[tuple[int, str]], counted: Counted) -> Iterator[Number]:
    for position, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            counts = (position, name) in counted.groups
            if name != "lr" and (position, name) not in moving and not counts:
                continue
            if isinstance(value, NUMBERS):
                yield GroupNumber(position, name, counts=counts)
            elif isinstance(value, tuple | list):
                for item in range(len(value)):
                    yield GroupNumber(position, name, item, counts)


def state_numbers(optimizer: Optimizer, parameter: torch.Tensor, name: str, counted: Counted) -> list[Number]:
    """The optimizer's counters for a parameter, which a step calls ``name``."""
    state = optimizer.state.get(parameter, {})
    return [StateNumber(f"state.{name}.{key}", parameter, key) for key in state if key in counted.states]


def own_state(optimizer: Optimizer, counted: Counted) -> dict[str, Any]:
    """The state that an optimizer keeps in attributes, which its ``state_dict`` omits."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, torch.Tensor) or name in counted.attributes
    }
