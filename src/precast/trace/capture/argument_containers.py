"""What a program does to the containers that it is given: a cache grows, a list is appended to.

Before: ``def step(x, seen): seen.append(x * 2); return seen``, run over copies of the caller's containers
After:  results in which ``ArgumentContainer(0)`` stands for the caller's list, and what that list holds afterwards
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from precast.graph.opened_objects import PLAIN_TYPES, attributes, is_object, is_value, object_parts, set_attributes

_SEQUENCES = (list, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict)


@dataclass(frozen=True)
class ArgumentContainer:
    """Among results: the caller's own container, by its number in ``argument_containers``."""

    number: int


def children_of(value: Any) -> Sequence[Any] | None:
    """What a container holds, as a tree shows it; None for leaves."""
    kind = type(value)
    if pytree.is_namedtuple_class(kind):
        return list(value)
    if kind in pytree.SUPPORTED_NODES:
        return list(pytree.SUPPORTED_NODES[kind].flatten_fn(value)[0])
    return list(object_parts(value)[0].values()) if is_object(value) else None


def argument_containers(value: Any) -> Iterator[Any]:
    """All containers in ``value`` that a program can change, outermost first."""
    children = children_of(value)
    if children is None:
        return
    if type(value) in (*_SEQUENCES, *_MAPPINGS) or _has_attributes_only(value):
        yield value
    for child in children:
        if not is_value(child):
            yield from argument_containers(child)


def _has_attributes_only(value: Any) -> bool:
    return not isinstance(value, (tuple, *_SEQUENCES, *_MAPPINGS))


class WatchedContainers:
    """The containers of a call's arguments, with what they held before the call."""

    def __init__(self, arguments: Any) -> None:
        self._containers = list(argument_containers(arguments))
        self._before = [_contents(container) for container in self._containers]
        self._numbers = {id(container): number for number, container in enumerate(self._containers)}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._numbers

    def stand_in(self, value: Any) -> Any:
        """What stands for one of the containers among results; any other value itself."""
        return ArgumentContainer(self._numbers[id(value)]) if value in self else value

    def changes(self) -> dict[int, Any]:
        """What containers hold now, by number, for those that hold something else than before."""
        pairs = zip(self._containers, self._before, strict=True)
        found = {number: _change(container, before) for number, (container, before) in enumerate(pairs)}
        return {number: change for number, change in found.items() if change is not None}


def apply_changes(containers: Sequence[Any], changes: Mapping[int, Any]) -> None:
    """Let the caller's containers hold what the program's copies of them did."""
    for number, change in changes.items():
        container = containers[number]
        if isinstance(container, _SEQUENCES):
            container.clear()
            container.extend(change)
        elif isinstance(container, _MAPPINGS):
            container.clear()
            container.update(change)
        else:
            assigned, removed = change
            set_attributes(container, assigned)
            for name in removed:
                object.__delattr__(container, name)


def _contents(container: Any) -> Any:
    if isinstance(container, _SEQUENCES):
        return list(container)
    return dict(container) if isinstance(container, _MAPPINGS) else attributes(container)


def _change(container: Any, before: Any) -> Any:
    now = _contents(container)
    if isinstance(before, list):
        is_same = len(now) == len(before) and all(map(_is_same, now, before))
        return None if is_same else now
    assigned = {name: value for name, value in now.items() if name not in before or not _is_same(value, before[name])}
    removed = [name for name in before if name not in now]
    if not assigned and not removed:
        return None
    return now if isinstance(container, _MAPPINGS) else (assigned, removed)


def _is_same(now: Any, before: Any) -> bool:
    return now is before or (isinstance(before, PLAIN_TYPES) and type(now) is type(before) and bool(now == before))
