"""Snapshots Python state before a run of the user's program, records what the run wrote, and restores it.

Before: ``self.calls += 1; history["last"] = 3``, run once on fake tensors
After:  the original state, and ``Write`` objects that repeat the writes after each call of the compiled program

Library objects that are consumed by use cannot be restored, and are refused: iterators, random number generators.

Before: ``next(self.numbers)``, ``self.chance.random()``
After:  ``CaptureError`` before code that names them runs; the program then runs in Python instead

Tracing runs a program several times, and a compiled graph would keep the values that the first run took.
"""

import random
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import is_
from types import CodeType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.errors import CaptureError
from precast.graph.opened_objects import opened, unflatten
from precast.trace.cached_functions import note_cached_functions
from precast.trace.captured_tensors import is_real_tensor
from precast.trace.exchanged_attributes import users_attributes
from precast.trace.executed_code import Executed, ExecutedCode, is_machinery, is_trusted
from precast.trace.state.places import Home, Place, Sized, home_of
from precast.trace.state.reachable import ReachableState, join_path, reachable_state
from precast.trace.state.reads import Reads, Variable, variables_read
from precast.trace.state.references import References, with_shared
from precast.trace.texts import Printed


class SpentByUse:
    """The names of objects that are consumed by use, and a check of code that is about to run."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, places: Iterable[Place], values: Iterable[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            if _is_spent_by_use(value):
                self._paths[_name_of(place.path)] = place.path

    def check(self, code: CodeType) -> None:
        """Refuse code that names one of them."""
        for name in (*code.co_names, *code.co_freevars) if self._paths else ():
            if name in self._paths:
                raise CaptureError(
                    f"The program uses {self._paths[name]}, which every use changes.",
                    at=f"{code.co_filename}:{code.co_firstlineno}, in {code.co_qualname}",
                    why="tracing would advance it, too, and compiled code would keep the first value taken",
                    fix="Take the next value outside, and pass it as an argument.",
                )


def _name_of(path: str) -> str:
    """The last name in a path, which code must use to reach it; items of containers have no names."""
    path = re.sub(r"\[.*?\]", "", path)
    variable = re.fullmatch(r"the (?:variable|global) (\w+) of \S+", path)
    return variable[1] if variable else path.rpartition(".")[2]


def _is_spent_by_use(value: Any) -> bool:
    kind = type(value)
    if str(kind.__module__).startswith("numpy.random"):
        return True
    # Iterators of user classes keep their state in attributes, which are watched.
    return isinstance(value, random.Random) or (isinstance(value, Iterator) and is_trusted(kind.__module__))


_GONE = object()
_PLAIN = (bool, int, float, str, type(None), torch.SymInt, torch.SymFloat)


@dataclass(frozen=True)
class Write:
    """What a run wrote into one holder; ``put`` writes other values into the holder that ``locate`` returns."""

    path: str
    values: list[Any]
    put: Callable[[Any, Sequence[Any]], None]
    locate: Callable[[], Any]
    homes: tuple[Home, ...] = ()
    """The places whose value was replaced."""
    added_to: Sized | None = None
    """The holder, if the write only added items to it."""

    @classmethod
    def adding(cls, sized: Sized, values: list[Any], keys: Sequence[Any] = ()) -> "Write":
        """A write that adds values under ``keys``, or at the end of a list."""
        if not isinstance(sized.holder, dict):
            return cls(sized.path, values, _builtin_kind(sized.holder).extend, sized.locate, added_to=sized)
        put = partial(_Held(sized, {}, False).put, keys, ())
        homes = tuple((id(sized.holder), key) for key in keys)
        return cls(sized.path, values, put, sized.locate, homes, added_to=sized)

    @classmethod
    def of_printed(cls, printed: Printed) -> "Write":
        """What was printed, to be printed at every call."""
        return cls("what is printed", list(printed.values), Printed.show, lambda: printed)


@dataclass(frozen=True)
class Writes:
    """All writes of a run, in order, and the tree of their values.

    ``shared`` are the trees of new containers that the run put into several places, inner ones first: their leaves come
    before all others.
    """

    writes: tuple[Write, ...] = ()
    tree: pytree.TreeSpec | None = None
    shared: tuple[pytree.TreeSpec, ...] = ()

    @classmethod
    def of(cls, writes: Sequence[Write], references: References) -> "tuple[list[Any], Writes]":
        """The leaves of the written values, and the writes."""
        leaves: list[Any] = []
        shared: list[pytree.TreeSpec] = []
        for container in references.shared:
            found, tree = references.flatten_inside(container)
            leaves += found
            shared.append(tree)
        if not writes and not shared:
            return [], cls()
        found, tree = references.flatten([_with_open_sizes(write.values) for write in writes])
        return [*leaves, *found], cls(tuple(writes), tree, tuple(shared))

    def __bool__(self) -> bool:
        return bool(self.writes or self.shared)

    def put(self, leaves: Sequence[Any]) -> list[Any]:
        """Repeat the writes with values made of these leaves; returns the shared containers."""
        assert self.tree is not None, "something was written"
        # Sets are leaves; each call gets its own copy, since it may be mutated.
        own = iter([set(leaf) if type(leaf) is set else leaf for leaf in leaves])
        made: list[Any] = []
        for tree in self.shared:
            made.append(unflatten(iter(with_shared(islice(own, tree.num_leaves), made)), tree))
        holders = [write.locate() for write in self.writes]
        values = unflatten(iter(with_shared(own, made)), self.tree)
        for write, holder, each in zip(self.writes, holders, values, strict=True):
            write.put(holder, each)
        return made

    @property
    def tensor_keys(self) -> list[torch.Tensor]:
        """The tensors that are keys of written places."""
        return [key for write in self.writes for _, key in write.homes if isinstance(key, torch.Tensor)]

    @property
    def count(self) -> int:
        """The number of leaves."""
        return sum(tree.num_leaves for tree in (self.tree, *self.shared) if tree is not None)


def _with_open_sizes(values: list[Any]) -> list[Any]:
    """Sizes as tuples where torch's pytree takes them for leaves, so that symbols in them are leaves of the tree."""
    are_leaves = torch.Size not in pytree.SUPPORTED_NODES
    return [tuple(value) if are_leaves and isinstance(value, torch.Size) else value for value in values]


class StateSnapshot:
    """All holders of state, with shallow copies of their contents."""

    def __init__(self, function: Callable[..., Any], executed: ExecutedCode | None) -> None:
        self.homes: dict[int, Place] = {}
        self._holders: dict[int, _Held] = {}
        self._places: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self._spent_by_use = SpentByUse()
        self._add(reachable_state(function, Reads.of_all_state(())), is_global=False)
        self._namespaces: set[tuple[int, str]] = set()
        if executed is not None and executed.is_complete:
            self._add_variables(Reads.of(executed).variables)
        elif executed is not None:
            executed.observers.append(self._observe)

    def _observe(self, executed: Executed) -> None:
        """Snapshot what code refers to, before it first runs."""
        name = str(executed.variables.get("__name__", ""))
        if not is_trusted(name) and not is_machinery(name):
            self._add_variables(tuple(variables_read(executed.code, executed.variables, name)))
            self._spent_by_use.check(executed.code)

    def _add_variables(self, variables: tuple[Variable, ...]) -> None:
        new = tuple(each for each in variables if (id(each[0]), each[2]) not in self._namespaces)
        self._namespaces.update((id(namespace), name) for namespace, _, name in new)
        if new:
            self._add(reachable_state(None, Reads.of_all_state(new)), is_global=True)

    def _add(self, state: ReachableState, *, is_global: bool) -> None:
        self.homes = state.homes | self.homes
        sets = [
            Sized(each.path, each.holder, bool, home=state.homes.get(id(each.holder)))
            for each in state.watched
            if isinstance(each.holder, set)
        ]
        self.add((*state.sized, *sets), is_global=is_global)
        self._spent_by_use.add(state.places, state.values)
        note_cached_functions(state.kept)
        for place, value in zip(state.places, state.values, strict=True):
            if place.is_attribute or place.is_variable:
                self._places.setdefault((id(place.holder), place.key), (place, value))

    def add(self, holders: Iterable[Sized], *, is_global: bool = False) -> None:
        """Snapshot further holders."""
        for sized in holders:
            if id(sized.holder) not in self._holders:
                self._holders[id(sized.holder)] = _Held.of(sized, is_global=is_global)

    def writes(self) -> list[Write]:
        """The writes since the snapshot."""
        found = [write for held in self._holders.values() if (write := held.write()) is not None]
        for place, before in self._places.values():
            if (now := _read(place)) is not before and now is not _GONE:
                found.append(Write(place.path, [now], _put_one, partial(_itself, place), (home_of(place),)))
        return found

    def restore(self) -> list[str]:
        """Restore everything; returns the paths of what had changed."""
        changed = []
        for held in self._holders.values():
            if (write := held.write()) is not None:
                held.restore()
                changed.append(write.path)
        for place, before in self._places.values():
            if _read(place) is not before:
                place.write(before)
                changed.append(place.path)
        return changed


def _itself(place: Place) -> Place:
    return place


def _put_one(place: Place, values: Sequence[Any]) -> None:
    place.write(values[0])


@dataclass(frozen=True)
class _Held:
    """One holder and its earlier contents; ``is_global`` if it is reached only from globals."""

    sized: Sized
    before: Any
    is_global: bool

    @classmethod
    def of(cls, sized: Sized, *, is_global: bool) -> "_Held":
        holder = sized.holder
        is_sequence = isinstance(holder, (list, deque))
        before = list(holder) if is_sequence else set(holder) if isinstance(holder, set) else users_attributes(holder)
        return cls(sized, before, is_global)

    def write(self) -> Write | None:
        holder, before, path, locate = self.sized.holder, self.before, self.sized.path, self.sized.locate
        if isinstance(holder, set):
            is_same = self.is_global or holder == before
            return None if is_same else Write(path, [set(holder)], _refill_set, locate)
        if isinstance(before, list):
            starts_alike = len(holder) >= len(before) and all(map(is_, holder, before))
            if not starts_alike:
                return Write(path, list(holder), _refill, locate, self._homes(range(len(holder))))
            added = list(holder)[len(before) :]
            return Write.adding(self.sized, added) if added else None
        keys, removed = self._changed_keys()
        if not keys and not removed:
            return None
        if self.sized.is_module:
            path = ", ".join(join_path(path, key) for key in (*keys, *removed))

        values = [holder[key] for key in keys]
        if isinstance(holder, dict) and not (self.sized.is_module or removed or any(key in before for key in keys)):
            return Write.adding(self.sized, values, keys)
        return Write(path, values, partial(self.put, keys, removed), locate, self._homes(keys))

    def put(self, keys: Sequence[Any], removed: Sequence[Any], found: Any, values: Sequence[Any]) -> None:
        """Assign values to some keys, and remove others."""
        for key, value in zip(keys, values, strict=True):
            self._assign(found, key, value)
        for key in removed:
            self._remove(found, key)

    def _homes(self, keys: Iterable[Any]) -> tuple[Home, ...]:
        return tuple((id(self.sized.holder), key) for key in keys)

    def _changed_keys(self) -> tuple[list[Any], list[Any]]:
        holder, before = users_attributes(self.sized.holder), self.before
        keys = [key for key, value in holder.items() if value is not before.get(key, _GONE)]
        if not self.is_global:
            return keys, [key for key in before if key not in holder]
        # Registrations and caches that libraries fill when they are first used stay: repeating them could be an error.
        known = [key for key in keys if key in before and type(holder[key]) in _PLAIN]
        return [key for key in keys if key in known or traced_tensors(holder[key])], []

    def _assign(self, holder: Any, key: Any, value: Any) -> None:
        if self.sized.owner is not None:
            setattr(self.sized.owner, key, value)
        else:
            # The user's __setitem__ is bypassed: its other effects are writes of their own.
            _builtin_kind(holder).__setitem__(holder, key, value)

    def _remove(self, holder: Any, key: Any) -> None:
        if self.sized.owner is not None:
            delattr(self.sized.owner, key)
        else:
            _builtin_kind(holder).pop(holder, key, None)

    def restore(self) -> None:
        holder = self.sized.holder
        if not isinstance(self.before, dict):
            _refill(holder, self.before)
            return
        keys, removed = self._changed_keys()
        for key in keys:
            if key in self.before:
                self._assign(holder, key, self.before[key])
            else:
                self._remove(holder, key)
        for key in removed:
            self._assign(holder, key, self.before[key])


def _refill(holder: Any, contents: Any) -> None:
    kind = _builtin_kind(holder)
    kind.clear(holder)
    (kind.update if isinstance(holder, set) else kind.extend)(holder, contents)


def _refill_set(holder: set[Any], values: Sequence[Any]) -> None:
    _refill(holder, values[0])


def _builtin_kind(holder: Any) -> Any:
    """The builtin container class that an object derives from."""
    return next(kind for kind in (OrderedDict, dict, list, deque, set) if isinstance(holder, kind))


def traced_tensors(value: Any) -> list[torch.Tensor]:
    """The traced (fake or functional) tensors in a value."""
    leaves = list(value) if isinstance(value, set) else pytree.tree_leaves(opened(value))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not is_real_tensor(leaf)]


def _read(place: Place) -> Any:
    try:
        return place.read()
    except (LookupError, AttributeError, ValueError):
        return _GONE
