"""Places of values in Python state: one place, an item of a container in a place, many places at once."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from types import FunctionType
from typing import Any

from precast.trace.exchanged_attributes import ExchangedAttribute


@dataclass(frozen=True, eq=False)
class Place:
    """One value's place: ``holder[key]``, or ``holder.key`` for ``is_attribute``; ``owner`` is its class, if any."""

    path: str
    holder: Any
    key: Any
    is_attribute: bool = False
    owner: type | None = None
    is_variable: bool = False

    def read(self) -> Any:
        if self.is_attribute:
            return getattr(self.holder, self.key)
        if self.makes_up_values and self.key not in self.holder:
            raise KeyError(self.key)
        found = self.holder[self.key]
        return found.before if isinstance(found, ExchangedAttribute) else found

    @property
    def makes_up_values(self) -> bool:
        """Whether reading a missing key would create it."""
        return isinstance(self.holder, defaultdict)

    @property
    def is_lookup(self) -> bool:
        """Whether ``holder[key]`` reads it."""
        return not self.is_attribute and not self.makes_up_values

    def write(self, value: Any) -> None:
        if self.is_attribute or self.owner is not None:
            holder = self.owner or self.holder
            # A __setattr__ of the user's would have effects of its own, or refuse, as those of frozen dataclasses do.
            assign = object.__setattr__ if isinstance(type(holder).__setattr__, FunctionType) else setattr
            assign(holder, self.key, value)
        elif isinstance(self.holder, dict) and isinstance(found := self.holder.get(self.key), ExchangedAttribute):
            found.before = value
        else:
            self.holder[self.key] = value


@dataclass(frozen=True, eq=False)
class Item(Place):
    """One item or attribute of a container that may be replaced as a whole; ``whole`` is the container's place."""

    whole: Place = field(kw_only=True)
    index: Any = field(kw_only=True)
    kind: type = field(kw_only=True)

    @classmethod
    def of(cls, whole: Place, index: Any, container: Any, *, is_attribute: bool = False) -> "Item":
        path = f"{whole.path}.{index}" if is_attribute else f"{whole.path}[{index!r}]"
        return cls(path, whole.holder, (whole.key, index), is_attribute, whole=whole, index=index, kind=type(container))

    @property
    def is_lookup(self) -> bool:
        return False

    def _container(self) -> Any:
        found = self.whole.read()
        if type(found) is not self.kind:
            raise LookupError(self.path)
        return found

    def read(self) -> Any:
        found = self._container()
        return getattr(found, self.index) if self.is_attribute else found[self.index]

    def write(self, value: Any) -> None:
        container = self._container()
        if self.is_attribute:
            object.__setattr__(container, self.index, value)
        elif isinstance(container, tuple):
            items = [*container[: self.index], value, *container[self.index + 1 :]]
            self.whole.write(type(container)(*items) if hasattr(container, "_fields") else type(container)(items))
        else:
            container[self.index] = value


Home = tuple[int, Any]
"""The identity of a place: that of its holder, and the key in it."""


def home_of(place: Place) -> Home:
    return id(place.holder), place.key


class Readings:
    """Many places, read at every call. There may be hundreds, so a Python loop would be a visible cost."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)
        self._others = [number for number, each in enumerate(self.places) if not each.is_lookup]
        # Places that are not plain lookups are replaced by a lookup that always succeeds.
        self._holders = [each.holder if each.is_lookup else _ANYTHING for each in self.places]
        self._keys = [each.key if each.is_lookup else 0 for each in self.places]

    def read(self) -> list[Any]:
        """The current values; None for places that are gone."""
        try:
            found = list(map(getitem, self._holders, self._keys))
        except MISSING:
            return list(map(_found_in, self.places))
        if ExchangedAttribute in map(type, found):
            return list(map(_found_in, self.places))
        for number in self._others:
            found[number] = _found_in(self.places[number])
        return found


MISSING = (LookupError, AttributeError, ValueError)
"""The exceptions that reading a missing place raises."""
_ANYTHING = (None,)


def _found_in(place: Place) -> Any:
    try:
        return place.read()
    except MISSING:
        return None


NOWHERE = Readings(())


@dataclass(frozen=True, eq=False)
class Sized:
    """A container that may grow; new keys are relevant if ``may_read`` is true for them.

    ``home`` is the place of the container itself, or of the object whose attributes these are.
    """

    path: str
    holder: Any
    may_read: Callable[[Any], bool]
    owner: type | None = None
    is_module: bool = False
    home: Place | None = None
    has_order: bool = False
    """Whether the program may observe the order of the keys."""

    def locate(self) -> Any:
        """The holder, or its replacement."""
        if self.home is None:
            return self.holder
        found = _found_in(self.home)
        if not isinstance(found, type(self.holder)):
            found = getattr(found, "__dict__", None)
        return found if type(found) is type(self.holder) else self.holder


@dataclass(frozen=True, eq=False)
class Watched:
    """State that is compared as a whole."""

    path: str
    read: Callable[[], Any]
    holder: Any = None
