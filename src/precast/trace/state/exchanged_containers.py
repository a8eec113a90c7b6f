"""Containers that a program or its user replaces as a whole, such as the hidden state of a module.

Before: ``self.hidden = (h, c)`` at the end of each call, so that the next call finds another tuple
After:  the tensors and numbers in it are read by their path, and its structure is guarded
"""

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.graph.opened_objects import attributes, is_object, set_attributes
from precast.trace.capture.number_inputs import is_number
from precast.trace.state.places import MISSING, Place

_SEQUENCES = (tuple, list, deque)


@dataclass(frozen=True)
class Parts:
    """The contents of a container, by index, key or name."""

    items: Mapping[Any, Any]
    are_attributes: bool = False


def parts_of(value: Any) -> Parts | None:
    """The contents of a container, or of an object that can be opened; None for anything else."""
    if isinstance(value, _SEQUENCES):
        return Parts(dict(enumerate(value)))
    if isinstance(value, dict):
        return None if any(isinstance(key, torch.Tensor) for key in value) else Parts(dict(dict.items(value)))
    return Parts(attributes(value), are_attributes=True) if is_object(value) else None


def is_exchangeable(value: Any) -> bool:
    """Whether it may be replaced by another container of the same structure."""
    return parts_of(value) is not None


def forms_in(places: Sequence[Place]) -> dict[str, Any]:
    """The structures of the values in some places, by path: everything about them except tensors and numbers."""
    met: dict[int, int] = {}
    return {place.path: _form_of(_read(place), met) for place in places}


def _read(place: Place) -> Any:
    try:
        return place.read()
    except MISSING:
        return None


def _form_of(value: Any, met: dict[int, int]) -> Any:
    if is_number(value):
        return type(value)
    parts = parts_of(value)
    if parts is None and not isinstance(value, torch.Tensor):
        return value
    # Repeated objects become a number, so that one list in two places differs from two lists.
    if not isinstance(value, tuple):
        if (number := met.get(id(value))) is not None:
            return number
        met[id(value)] = len(met)
    if parts is None:
        return torch.Tensor
    return (type(value), *parts.items, *(_form_of(part, met) for part in parts.items.values()))


def without_tensors(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A container of the same structure with empty tensors instead of its own, so that none is kept alive."""
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, torch.Tensor):
        made[id(value)] = torch.empty(0)
        return made[id(value)]
    parts = parts_of(value)
    if parts is None:
        return value
    if isinstance(value, tuple):
        items = [without_tensors(part, made) for part in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    copied = made[id(value)] = copy.copy(value)
    emptied = {key: without_tensors(part, made) for key, part in parts.items.items()}
    if parts.are_attributes:
        set_attributes(copied, emptied)
    else:
        for key, part in emptied.items():
            copied[key] = part
    return copied
