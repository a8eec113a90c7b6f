"""Guards on Python state: what a variant assumes about it, checked at every call with loops that run in C.

Before: places that the traced program could read, and what was there
After:  ``hold()``, and a description of what no longer holds: ``Net.scale was 2, is 3``
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import repeat
from operator import attrgetter, contains, getitem, is_
from typing import Any

import numpy
import torch

from precast.autograd.guards.keys import HeldKeys, behind, keys_of, shrink
from precast.errors import StateMutationError
from precast.trace.capture.number_inputs import is_number
from precast.trace.state.places import MISSING, Home, Item, Place, Readings, Sized, Watched, home_of
from precast.trace.state.reachable import ReachableState

_ABSENT = object()
_DICT = repeat("__dict__")
_namespace_of = object.__getattribute__
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_LONGEST = 60


class StateGuards:
    """The state guards of one variant.

    Values are compared by identity first. A value that was replaced by an equal one becomes the expected one, so that
    the next check is fast again; two values are equal if no program could distinguish them.
    """

    def __init__(self, state: ReachableState, inputs: Sequence[Place] = ()) -> None:
        """``inputs`` are places whose numbers are inputs of the program, and so unguarded."""
        # Tensors are inputs: the guard key covers them, except for their presence, which is guarded here.
        items: dict[Home, list[int]] = {}
        for place in inputs:
            if isinstance(place, Item):
                items.setdefault(home_of(place.whole), []).append(place.index)
        known = {home_of(place) for place in inputs} | items.keys()
        pairs = [
            (place, value)
            for place, value in zip(state.places, state.values, strict=True)
            if home_of(place) not in known
        ]
        keys = set(map(id, _tensor_keys(state)))
        pinned = [pair for pair in pairs if isinstance(pair[1], torch.Tensor) and id(pair[1]) in keys]
        plain = [pair for pair in pairs if not isinstance(pair[1], torch.Tensor)] + pinned
        self._by_path = _Paths([pair for pair in plain if isinstance(pair[0], Item)], Item.read)
        plain = [pair for pair in plain if not isinstance(pair[0], Item)]
        entries = [pair for pair in plain if not pair[0].is_attribute]
        stored = [pair for pair in entries if not pair[0].makes_up_values]
        self._items = _Family(stored, getitem)
        self._defaults = _Family([pair for pair in entries if pair[0].makes_up_values], dict.get)
        attributes = [pair for pair in plain if pair[0].is_attribute]
        self._codes = _Codes([pair for pair in attributes if pair[0].key == "__code__"], getattr)
        self._attributes = _Family([pair for pair in attributes if pair[0].key != "__code__"], getattr)
        self._tensors = [
            (place, id(value)) for place, value in pairs if isinstance(value, torch.Tensor) and id(value) not in keys
        ]
        self._tensor_places = Readings([place for place, _ in self._tensors])
        self._tied = list(_tied_places(state))
        self._empty_paths, self._empty = [path for path, _ in state.empty], [held for _, held in state.empty]
        self._absent = state.absent
        self._lacking, self._lacked = (
            [behind(place.holder) for place in self._absent],
            [place.key for place in self._absent],
        )
        self._namespace_paths = [path for path, _, _ in state.namespaces]
        self._owners, self._namespaces = (
            [each for _, each, _ in state.namespaces],
            [held for *_, held in state.namespaces],
        )
        self._object_paths, self._objects = [path for path, _ in state.objects], [each for _, each in state.objects]
        self._types = list(map(type, self._objects))
        self._keys = HeldKeys(state.sized, {home_of(place) for place, _ in pairs})
        # Parameters, buffers and submodules are covered by the guard key; the program itself may register more.
        self._owned = [
            Sized(path, held, bool, is_module=True)
            for path, each in state.objects
            if isinstance(each, torch.nn.Module)
            for held in (each._parameters, each._buffers, each._modules)
        ]
        self._keys_owned = list(map(keys_of, self._owned))
        wholes = [
            Watched(place.path, partial(_without_items, place, items[home_of(place)]))
            for place in state.places
            if home_of(place) in items
        ]
        self._watched = [(each, each.read()) for each in (*state.watched, *wholes)]
        self._read_watched = [(each.read, before, _is_clear(before)) for each, before in self._watched]
        self._exchanged, self._kept = state.exchanged, state.kept

    @property
    def _families(self) -> "tuple[_Family, ...]":
        return self._items, self._attributes, self._codes, self._defaults, self._by_path

    def _pairs(self) -> list[tuple[Place, Any]]:
        return [pair for family in self._families for pair in family.pairs()]

    def __len__(self) -> int:
        others = (self._objects, self._empty, self._watched, self._absent, self._owners)
        return sum(map(len, self._families)) + len(self._keys) + sum(map(len, others))

    def hold(self) -> bool:
        """Whether the state is as it was when the program was traced."""
        try:
            if (
                self._items.are_same()
                and self._codes.are_same()
                and (not self._attributes or self._attributes.are_same())
                and (not self._defaults or self._defaults.are_same())
                and (not self._by_path or self._by_path.are_same())
                and not any(self._empty)
                and self._keys.are_same()
                and not any(map(contains, self._lacking, self._lacked))
                and all(map(is_, map(_namespace_of, self._owners, _DICT), self._namespaces))
                and list(map(type, self._objects)) == self._types
            ):
                return self._are_rarities_same()
        except MISSING:
            pass
        return next(self.changes(), None) is None

    def changes(self) -> Iterator[str]:
        """Describe what differs from the state that was traced."""
        for family in self._families:
            yield from family.changes()
            while family.exchanged:
                self._watch(family.exchanged.pop())
        yield from (f"{path} was empty" for path, held in zip(self._empty_paths, self._empty, strict=True) if held)
        yield from (f"{place.path} is there now" for place in self._absent if place.key in place.holder)
        for path, owner, held in zip(self._namespace_paths, self._owners, self._namespaces, strict=True):
            if _namespace_of(owner, "__dict__") is not held:
                yield f"the attributes of {path} are in another dictionary"
        for path, value, kind in zip(self._object_paths, self._objects, self._types, strict=True):
            if type(value) is not kind:
                yield f"{path} was a {kind.__name__}, is a {type(value).__name__}"
        yield from self._keys.changes()
        yield from self._rare_changes()

    def pin(self, tensors: Sequence[torch.Tensor]) -> None:
        """Guard the identity of these tensors: the program stores something under them as keys."""
        known = {id(tensor): tensor for tensor in tensors}
        for place, identity in self._tensors:
            if identity in known:
                family = self._attributes if place.is_attribute else self._items
                (self._by_path if isinstance(place, Item) else family).add(place, known[identity])

    def changed_numbers(self) -> list[Place]:
        """The places whose number has changed."""
        changed = [(place, before, now) for place, before in self._pairs() if (now := _read(place)) is not before]
        return [found for place, before, now in changed for found in _changed_in(place, before, now)]

    def _are_rarities_same(self) -> bool:
        if self._tied or (self._tensors and not _PLAIN_TENSORS.issuperset(map(type, self._tensor_places.read()))):
            return next(self._rare_changes(), None) is None
        for read, before, is_clear in self._read_watched:
            now = read()
            if now is not before and not (is_clear and now == before) and not is_same(before, now):
                return False
        return True

    def _rare_changes(self) -> Iterator[str]:
        for place, _ in self._tensors:
            if not isinstance(now := _read(place), torch.Tensor):
                yield f"{place.path} was a tensor, is {_text_of(now)}"
        for first, other in self._tied:
            if _read(first) is not _read(other):
                yield f"{first.path} and {other.path} were one tensor"
        for watched, before in self._watched:
            if not is_same(before, now := watched.read()):
                changed = f"was {_text_of(before)}, is {_text_of(now)}"
                yield f"{watched.path} {'has changed' if isinstance(now, dict) else changed}"

    @contextmanager
    def assumed(self) -> Iterator[None]:
        """While active, Python state is as it was when the program was traced."""
        # ``hold`` may miss that keys were exchanged: one that the program stores, for one that a call needs.
        keys = [*self._keys.pairs(), *zip(self._owned, self._keys_owned, strict=True)]
        if self.hold() and all(keys_of(each) == before for each, before in keys):
            yield
            return
        with ExitStack() as stack:
            for watched, before in self._watched:
                if isinstance(watched.holder, set) and watched.holder != before:
                    stack.callback(_refill, watched.holder, frozenset(watched.holder))
                    _refill(watched.holder, before)
            for held in filter(None, self._empty):
                stack.callback(held.update, dict(held))
                held.clear()
            for each, before in keys:
                shrink(each, before, stack)
            # Places of tensors must hold some tensor; which one does not matter.
            gone = [(place, torch.empty(0)) for place, _ in self._tensors if not isinstance(place, Item)]
            gone = [(place, tensor) for place, tensor in gone if not isinstance(_read(place), torch.Tensor)]
            for place, before in (*self._exchanged, *gone, *self._pairs()):
                if (now := _read(place)) is not before:
                    place.write(before)
                    if now is not _ABSENT:
                        stack.callback(place.write, now)
            if (change := next(self.changes(), None)) is not None:
                raise StateMutationError(
                    "A call cannot be run again, for gradients of its gradients, since Python's state has changed.",
                    why=change,
                    fix="Take gradients of gradients before the state is changed.",
                )
            yield

    def words(self) -> Iterator[str]:
        """Describe all guards on plain values, and count the others."""
        described = 0
        for place, value in self._pairs():
            if value is None or type(value) in _DESCRIBED:
                described += 1
                yield f"{place.path} is {_text_of(value)}"
        yield f"{len(self) - described} objects, containers and their lengths are as they were"

    def _watch(self, place: Place) -> None:
        """Compare a replaced container as a whole: the places of its items refer to the old one."""
        if not any(watched.holder is place for watched, _ in self._watched):
            self._watched.append((Watched(place.path, place.read, place), before := _copied(place.read())))
            self._read_watched.append((place.read, before, False))


def _without_items(place: Place, indices: Sequence[int]) -> Any:
    """A tuple in which items that are inputs are replaced by their types."""
    found = _read(place)
    if type(found) is not tuple:
        return found
    return tuple(type(item).__name__ if i in indices else item for i, item in enumerate(found))


def _changed_in(place: Place, before: Any, now: Any) -> Iterator[Place]:
    """The place, if its number has changed; or the changed items of a tuple, if all of them are numbers."""
    if is_number(before) and is_number(now) and before != now:
        yield place
    elif type(before) is tuple and type(now) is tuple and len(before) == len(now):
        differing = [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if not is_same(old, new)]
        if all(is_number(before[i]) and is_number(now[i]) for i in differing):
            yield from (Item.of(place, i, before) for i in differing)


class _Family:
    """Places that are read by the same function, and their expected values."""

    def __init__(self, pairs: Sequence[tuple[Place, Any]], read: Any) -> None:
        self.places = [place for place, _ in pairs]
        self._holders = [behind(place.holder) for place in self.places]
        self._keys = [place.key for place in self.places]
        self._expected, self._read = [value for _, value in pairs], read
        self._addresses: bytes | None = None
        self.exchanged: list[Place] = []
        """Places whose container was replaced by an equal one since the last check."""

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: Place, value: Any) -> None:
        self.places.append(place)
        self._holders.append(behind(place.holder))
        self._keys.append(place.key)
        self._expected.append(value)
        self._addresses = None

    def are_same(self) -> bool:
        found = map(self._read, self._holders, self._keys)
        if len(self._keys) < _MANY:
            return all(map(is_, found, self._expected))
        if self._addresses is None:
            self._addresses = addresses_of(self._expected, len(self._keys))
        return addresses_of(found, len(self._keys)) == self._addresses

    def pairs(self) -> Iterator[tuple[Place, Any]]:
        return zip(self.places, self._expected, strict=True)

    def changes(self) -> Iterator[str]:
        for position, (place, before) in enumerate(zip(self.places, self._expected, strict=True)):
            now = _read(place)
            if now is before:
                continue
            if is_same(before, now):
                self._expected[position], self._addresses = now, None
                if type(now) in _CONTAINERS:
                    self.exchanged.append(place)
            else:
                is_replaced = isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor)
                change = "is another tensor" if is_replaced else f"was {_text_of(before)}, is {_text_of(now)}"
                yield f"{place.path} {change}"


_MANY = 50
_OBJECT = numpy.dtype(object)


def addresses_of(values: Iterable[Any], count: int) -> bytes:
    """The addresses of the objects as bytes: comparing these is a third faster than comparing objects one by one."""
    return numpy.fromiter(values, _OBJECT, count).tobytes()


class _Codes(_Family):
    """The code of functions, which are many: a lookup by one fixed name is faster than by varying names."""

    _get = attrgetter("__code__")

    def are_same(self) -> bool:
        # Code objects are equal only if they do the same.
        return list(map(self._get, self._holders)) == self._expected


class _Paths(_Family):
    """Items of tuples, which are replaced as a whole; there are few."""

    def are_same(self) -> bool:
        return all(map(is_same, map(self._read, self.places), self._expected))


def _read(place: Place) -> Any:
    try:
        return place.read()
    except MISSING:
        return _ABSENT


def _refill(held: set[Any], items: Collection[Any]) -> None:
    held.clear()
    held.update(items)


def _tensor_keys(state: ReachableState) -> Iterator[torch.Tensor]:
    """Tensors that are keys of dicts: their identity matters."""
    for sized in state.sized:
        if isinstance(sized.holder, dict):
            yield from (key for key in sized.holder if isinstance(key, torch.Tensor))


def _tied_places(state: ReachableState) -> Iterator[tuple[Place, Place]]:
    """Pairs of places that hold the same tensor, unless both are a module's own, which the guard key covers."""
    noted = set(map(id, state.places))
    for first, *others in state.tensors.values():
        yield from ((first, other) for other in others if id(first) in noted or id(other) in noted)


_PLAIN = (bool, int, str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)

_DESCRIBED = (*_PLAIN, float)
# 1 == 1.0 == True.
_AMBIGUOUS = frozenset({bool, int, float, complex})


def is_same(left: Any, right: Any) -> bool:
    """Whether no program could distinguish two values, except by identity."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if type(left) is float:
        # 0.0 == -0.0 and nan != nan.
        return bool(left.hex() == right.hex())
    if type(left) in (tuple, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(is_same(value, right[key]) for key, value in left.items())
    if type(left) in (set, frozenset):
        return bool(left == right) and (_is_clear(left) or set(map(type, left)) == set(map(type, right)))
    return type(left) in _PLAIN and bool(left == right)


def _copied(value: Any) -> Any:
    """A deep copy of a container; only called for containers of plain values."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(map(_copied, value)) if type(value) in _CONTAINERS or type(value) is tuple else value


_CONTAINERS = (list, dict, set)


def _is_clear(value: Any) -> bool:
    """Whether ``==`` suffices for a value: it is a set without numbers, for which 1 == 1.0 == True."""
    return type(value) is frozenset and _AMBIGUOUS.isdisjoint(map(type, value))


def _text_of(value: Any) -> str:
    if value is _ABSENT:
        return "gone"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    text = repr(value)
    return text if len(text) <= _LONGEST and " at 0x" not in text else f"another {type(value).__name__}"
