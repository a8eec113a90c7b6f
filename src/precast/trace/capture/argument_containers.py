"""Mutations of containers among a program's arguments: a cache grows, a list is appended to.

Before: ``def step(x, seen): seen.append(x * 2); return seen``, run over copies of the caller's containers
After:  results in which ``ArgumentContainer(0)`` stands for the caller's list, and the new contents of that list
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from precast.graph.opened_objects import (
    ITEMS,
    PLAIN_TYPES,
    attributes,
    is_object,
    is_value,
    object_parts,
    set_attributes,
)

_SEQUENCES = (list, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict)
_BUILTIN = (tuple, *_SEQUENCES, *_MAPPINGS)


@dataclass(frozen=True)
class ArgumentContainer:
    """A result that is one of the caller's own containers, by its number in ``argument_containers``."""

    number: int


def children_of(value: Any) -> Sequence[Any] | None:
    """The children of a container, as in its pytree; None for leaves."""
    kind = type(value)
    if pytree.is_namedtuple_class(kind):
        return list(value)
    if kind in pytree.SUPPORTED_NODES:
        return list(pytree.SUPPORTED_NODES[kind].flatten_fn(value)[0])
    return list(object_parts(value)[0].values()) if is_object(value) else None


def argument_containers(value: Any) -> Iterator[Any]:
    """All mutable containers in ``value``, outermost first."""
    children = children_of(value)
    if children is None:
        return
    if type(value) in (*_SEQUENCES, *_MAPPINGS) or not isinstance(value, _BUILTIN) or is_object(value):
        yield value
    for child in children:
        if not is_value(child):
            yield from argument_containers(child)


class WatchedContainers:
    """The containers among a call's arguments, with their contents before the call."""

    def __init__(self, arguments: Any) -> None:
        self._containers = list(argument_containers(arguments))
        self._before = [_contents(container) for container in self._containers]
        self._numbers = {id(container): number for number, container in enumerate(self._containers)}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._numbers

    def stand_in(self, value: Any) -> Any:
        """The ``ArgumentContainer`` for one of the containers; any other value unchanged."""
        return ArgumentContainer(self._numbers[id(value)]) if value in self else value

    def changes(self) -> dict[int, Any]:
        """The new contents of the containers that changed, by number."""
        pairs = zip(self._containers, self._before, strict=True)
        found = {number: _change(container, before) for number, (container, before) in enumerate(pairs)}
        return {number: change for number, change in found.items() if change is not None}


def apply_changes(containers: Sequence[Any], changes: Mapping[int, Any]) -> None:
    """Apply the changes that the program made to its copies to the caller's containers."""
    for number, change in changes.items():
        container = containers[number]
        if type(container) in _SEQUENCES:
            container.clear()
            container.extend(change)
        elif type(container) in _MAPPINGS:
            container.clear()
            container.update(change)
        else:
            assigned, removed = change
            set_attributes(container, assigned)
            for name in removed:
                object.__delattr__(container, name)


def _contents(container: Any) -> Any:
    if type(container) in _SEQUENCES:
        return list(container)
    return dict(container) if type(container) in _MAPPINGS else attributes(container)


def _change(container: Any, before: Any) -> Any:
    now = _contents(container)
    if isinstance(before, list):
        return None if _holds_the_same(now, before) else now
    assigned = {name: value for name, value in now.items() if name not in before or not _is_same(value, before[name])}
    if ITEMS in assigned and _holds_the_same(assigned[ITEMS], before[ITEMS]):
        del assigned[ITEMS]
    removed = [name for name in before if name not in now]
    if not assigned and not removed:
        return None
    return now if type(container) in _MAPPINGS else (assigned, removed)


def _holds_the_same(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return list(now) == list(before) and _holds_the_same([*now.values()], [*before.values()])
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(now: Any, before: Any) -> bool:
    return now is before or (isinstance(before, PLAIN_TYPES) and type(now) is type(before) and bool(now == before))
