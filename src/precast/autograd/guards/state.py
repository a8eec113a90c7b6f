"""What a variant assumes of Python's state, checked at every call at the speed of C.

Before: places that the traced program could read, and what was there
After:  ``hold()``, and in words what no longer holds: ``Net.scale was 2, is 3``
"""

import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter, getitem, is_
from types import MappingProxyType
from typing import Any

import numpy
import torch

from precast.errors import StateMutationError
from precast.trace.capture.number_inputs import is_number
from precast.trace.exchanged_attributes import users_attributes
from precast.trace.state.places import MISSING, Home, Item, Place, Readings, Sized, Watched, home_of
from precast.trace.state.reachable import ReachableState

_ABSENT = object()
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_LONGEST = 60


class StateGuards:
    """The assumptions of one variant.

    Values are compared by identity first. One that was replaced by its equal is taken in its place, so that the next
    check finds it at once; what counts as equal is what no program could tell from it.
    """

    def __init__(self, state: ReachableState, inputs: Sequence[Place] = ()) -> None:
        """``inputs`` are places whose numbers the program takes as inputs, whatever they are."""
        # Tensors are inputs: what a variant assumes of them is part of its key, beside that they are there at all.
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
        self._object_paths, self._objects = [path for path, _ in state.objects], [each for _, each in state.objects]
        self._types = list(map(type, self._objects))
        self._sized, self._holders = state.sized, [_behind(each.holder) for each in state.sized]
        self._lengths = list(map(len, self._holders))
        self._keys = [_keys_of(each) for each in state.sized]
        self._ordered = [each for each in state.sized if each.has_order and len(each.holder) > 1]
        self._dicts = [each.holder for each in self._ordered]
        self._orders = list(map(list, self._dicts))
        self._order = list(chain.from_iterable(self._orders))
        self._has_plain_keys = set(map(type, self._order)) <= {str}
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
        return sum(map(len, self._families)) + sum(map(len, (self._holders, self._objects, self._empty, self._watched)))

    def hold(self) -> bool:
        """Whether everything is as it was when the program was traced."""
        try:
            if (
                self._items.are_same()
                and self._codes.are_same()
                and (not self._attributes or self._attributes.are_same())
                and (not self._defaults or self._defaults.are_same())
                and (not self._by_path or self._by_path.are_same())
                and not any(self._empty)
                and list(map(len, self._holders)) == self._lengths
                and self._is_ordered()
                and list(map(type, self._objects)) == self._types
            ):
                return self._are_rarities_same()
        except MISSING:
            pass
        return next(self.changes(), None) is None

    def _is_ordered(self) -> bool:
        keys = chain.from_iterable(self._dicts)
        return list(keys) == self._order if self._has_plain_keys else all(map(is_, keys, self._order))

    def changes(self) -> Iterator[str]:
        """What is not as it was, in words."""
        for family in self._families:
            yield from family.changes()
            while family.exchanged:
                self._watch(family.exchanged.pop())
        yield from (f"{path} was empty" for path, held in zip(self._empty_paths, self._empty, strict=True) if held)
        for path, value, kind in zip(self._object_paths, self._objects, self._types, strict=True):
            if type(value) is not kind:
                yield f"{path} was a {kind.__name__}, is a {type(value).__name__}"
        for position, sized in enumerate(self._sized):
            yield from self._grown(position, sized)
        yield from self._reordered()
        yield from self._rare_changes()

    def pin(self, tensors: Sequence[torch.Tensor]) -> None:
        """Expect these very tensors where they are: the program writes something under them."""
        known = {id(tensor): tensor for tensor in tensors}
        for place, identity in self._tensors:
            if identity in known:
                family = self._attributes if place.is_attribute else self._items
                (self._by_path if isinstance(place, Item) else family).add(place, known[identity])

    def changed_numbers(self) -> list[Place]:
        """The places in which another number is now."""
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
                yield f"{place.path} was a tensor, is {_told(now)}"
        for first, other in self._tied:
            if _read(first) is not _read(other):
                yield f"{first.path} and {other.path} were one tensor"
        for watched, before in self._watched:
            if not is_same(before, now := watched.read()):
                changed = f"was {_told(before)}, is {_told(now)}"
                yield f"{watched.path} {'has changed' if isinstance(now, dict) else changed}"

    @contextmanager
    def assumed(self) -> Iterator[None]:
        """While active, Python's state is as it was when the program was traced."""
        if self.hold():
            yield
            return
        with ExitStack() as stack:
            for held in filter(None, self._empty):
                stack.callback(held.update, dict(held))
                held.clear()
            for position, sized in enumerate(self._sized):
                _shrink(sized, self._keys[position], stack)
            # Which tensors are there does not count; that there are some does.
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
        """All assumptions about plain values, in words, and how many others there are."""
        told = 0
        for place, value in self._pairs():
            if value is None or type(value) in _TOLD:
                told += 1
                yield f"{place.path} is {_told(value)}"
        yield f"{len(self) - told} objects, containers and their lengths are as they were"

    def _watch(self, place: Place) -> None:
        """Compare what is in a container as a whole: its items are known of the one that was there before."""
        if not any(watched.holder is place for watched, _ in self._watched):
            self._watched.append((Watched(place.path, place.read, place), before := _copied(place.read())))
            self._read_watched.append((place.read, before, False))

    def _reordered(self) -> Iterator[str]:
        for position, (sized, keys) in enumerate(zip(self._ordered, self._orders, strict=True)):
            now = list(sized.holder)
            if not all(map(_is_same_key, now, keys)):
                yield f"{sized.path} has its items in another order"
            elif len(now) == len(keys):
                self._orders[position] = now
        self._order = list(chain.from_iterable(self._orders))

    def _grown(self, position: int, sized: Sized) -> Iterator[str]:
        if len(sized.holder) == self._lengths[position]:
            return
        before, now = self._keys[position], _keys_of(sized)
        if before == now:
            # Something that the program does not read has come or gone.
            self._lengths[position] = len(sized.holder)
            return
        if isinstance(now, int):
            yield f"{sized.path} had {before} items, has {now}"
            return
        assert isinstance(before, frozenset), "a holder stays what it is"
        yield from (f"{sized.path} has {keys} now" for keys in _told_keys(now - before))
        yield from (f"{sized.path} has no {keys} any more" for keys in _told_keys(before - now))


def _behind(holder: Any) -> Any:
    """The dict that a class shows read-only as its namespace: lookups in it take half the time."""
    return gc.get_referents(holder)[0] if isinstance(holder, MappingProxyType) else holder


def _without_items(place: Place, indices: Sequence[int]) -> Any:
    """A tuple with the types of those of its items that are inputs in their place."""
    found = _read(place)
    if type(found) is not tuple:
        return found
    return tuple(type(item).__name__ if i in indices else item for i, item in enumerate(found))


def _changed_in(place: Place, before: Any, now: Any) -> Iterator[Place]:
    """The place, if another number is there; or the items of a tuple of which nothing but numbers has changed."""
    if is_number(before) and is_number(now) and before != now:
        yield place
    elif type(before) is tuple and type(now) is tuple and len(before) == len(now):
        differing = [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if not is_same(old, new)]
        if all(is_number(before[i]) and is_number(now[i]) for i in differing):
            yield from (Item.of(place, i, before) for i in differing)


class _Family:
    """Places that are read in one way, and what was there."""

    def __init__(self, pairs: Sequence[tuple[Place, Any]], read: Any) -> None:
        self.places = [place for place, _ in pairs]
        self._holders = [_behind(place.holder) for place in self.places]
        self._keys = [place.key for place in self.places]
        self._expected, self._read = [value for _, value in pairs], read
        self._addresses: bytes | None = None
        self.exchanged: list[Place] = []
        """Where containers have been exchanged for equal ones since somebody asked."""

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: Place, value: Any) -> None:
        self.places.append(place)
        self._holders.append(_behind(place.holder))
        self._keys.append(place.key)
        self._expected.append(value)
        self._addresses = None

    def are_same(self) -> bool:
        found = map(self._read, self._holders, self._keys)
        if len(self._keys) < _MANY:
            return all(map(is_, found, self._expected))
        if self._addresses is None:
            self._addresses = _addresses_of(self._expected, len(self._keys))
        return _addresses_of(found, len(self._keys)) == self._addresses

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
                change = "is another tensor" if is_replaced else f"was {_told(before)}, is {_told(now)}"
                yield f"{place.path} {change}"


_MANY = 50
_OBJECT = numpy.dtype(object)


def _addresses_of(values: Iterable[Any], count: int) -> bytes:
    """Which objects these are: to compare them one by one takes half as much again."""
    return numpy.fromiter(values, _OBJECT, count).tobytes()


class _Codes(_Family):
    """The code of functions, which are many: one lookup by a fixed name is faster than those by names that differ."""

    _get = attrgetter("__code__")

    def are_same(self) -> bool:
        # Code equals code only if it does the same.
        return list(map(self._get, self._holders)) == self._expected


class _Paths(_Family):
    """Items of containers that are exchanged as a whole, which are few."""

    def are_same(self) -> bool:
        return all(map(is_same, map(self._read, self.places), self._expected))


def _is_same_key(left: Any, right: Any) -> bool:
    # Tensors are keys by their identity, and answer by elements.
    return left is right or (not isinstance(left, torch.Tensor) and bool(left == right))


def _read(place: Place) -> Any:
    try:
        return place.read()
    except MISSING:
        return _ABSENT


def _keys_of(sized: Sized) -> frozenset[Any] | int:
    """The keys that count; of lists, how many there are."""
    if isinstance(sized.holder, dict) or hasattr(sized.holder, "keys"):
        held = users_attributes(sized.holder) if sized.is_module else sized.holder
        return frozenset(filter(sized.may_read, held))
    return len(sized.holder)


def _shrink(sized: Sized, before: frozenset[Any] | int, stack: ExitStack) -> None:
    """Take away what has come since, until the stack unwinds."""
    if isinstance(before, int):
        added = list(sized.holder)[before:]
        for _ in added:
            sized.holder.pop()
        stack.callback(sized.holder.extend, added)
    elif isinstance(sized.holder, dict):
        now = _keys_of(sized)
        assert isinstance(now, frozenset), "a holder stays what it is"
        if now - before:
            # Called last: what is put back comes after all that has stayed.
            stack.callback(_reorder, sized.holder, list(sized.holder))
        for key in now - before:
            stack.callback(sized.holder.__setitem__, key, sized.holder.pop(key))


def _reorder(held: dict[Any, Any], keys: Sequence[Any]) -> None:
    for key in keys:
        held[key] = held.pop(key)


def _tensor_keys(state: ReachableState) -> Iterator[torch.Tensor]:
    """Tensors under which a dict holds something: others in their place would be other keys."""
    for sized in state.sized:
        if isinstance(sized.holder, dict):
            yield from (key for key in sized.holder if isinstance(key, torch.Tensor))


def _tied_places(state: ReachableState) -> Iterator[tuple[Place, Place]]:
    """Pairs of places that hold one tensor, unless both are a module's own, which are compared elsewhere."""
    noted = set(map(id, state.places))
    for first, *others in state.tensors.values():
        yield from ((first, other) for other in others if id(first) in noted or id(other) in noted)


_PLAIN = (bool, int, str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)

_TOLD = (*_PLAIN, float)
# 1 == 1.0 == True.
_AMBIGUOUS = frozenset({bool, int, float, complex})


def is_same(left: Any, right: Any) -> bool:
    """Whether no program could tell two values apart, if it does not ask for their identity."""
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
    """A container that does not change with this one; only such come here whose items are plain values, too."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(map(_copied, value)) if type(value) in _CONTAINERS or type(value) is tuple else value


_CONTAINERS = (list, dict, set)


def _is_clear(value: Any) -> bool:
    """Whether whatever equals a value cannot be told from it, since it is a set without numbers."""
    return type(value) is frozenset and _AMBIGUOUS.isdisjoint(map(type, value))


def _told_keys(keys: Collection[Any]) -> Iterator[str]:
    """Each key in words; tensors, which optimizers have hundreds of as keys, by their number."""
    tensors = sum(isinstance(key, torch.Tensor) for key in keys)
    if tensors:
        yield "a tensor as a key" if tensors == 1 else f"{tensors} tensors as keys"
    yield from (repr(key) for key in keys if not isinstance(key, torch.Tensor))


def _told(value: Any) -> str:
    if value is _ABSENT:
        return "gone"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    text = repr(value)
    return text if len(text) <= _LONGEST and " at 0x" not in text else f"another {type(value).__name__}"
