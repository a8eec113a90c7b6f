"""Guards on the keys of the dicts and namespaces that a program may read: none was added, and none removed.

Before: ``vars(module)`` with the names ``scale`` and ``comment``, and a class attribute ``gain``
After:  ``are_same()``, which detects ``del module.comment; module.gain = 5``, although the length is the same
"""

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from operator import is_
from types import MappingProxyType
from typing import Any

import torch

from precast.trace.exchanged_attributes import users_attributes
from precast.trace.state.places import Home, Sized

# Attributes that every module has, and the mark that transformers sets on each.
_ON_EVERY_MODULE = frozenset({*vars(torch.nn.Module()), "_is_hf_initialized"})
_contains = dict.__contains__


class HeldKeys:
    """The keys of many containers and namespaces.

    If the length is the same and no key is gone, the keys are the same. Modules, of which there may be hundreds, are
    therefore checked only for the few names that are not looked up in ``read`` places anyway; the keys of all other
    containers are compared one by one.
    """

    def __init__(self, sized: Sequence[Sized], read: Collection[Home]) -> None:
        self._sized, self._read = sized, read
        self._holders = [behind(each.holder) for each in sized]
        self._keys = list(map(keys_of, sized))
        self._lengths = list(map(len, self._holders))
        self._names: dict[int, list[Any]] = {}
        self._lists: dict[int, list[Any]] = {}
        for position in range(len(sized)):
            self._note(position)
        self._join()

    def __len__(self) -> int:
        return len(self._holders)

    def pairs(self) -> Iterator[tuple[Sized, frozenset[Any] | int]]:
        """The containers with their relevant keys, or, for lists, their lengths."""
        return zip(self._sized, self._keys, strict=True)

    def are_same(self) -> bool:
        return (
            list(map(len, self._filled)) == self._filled_lengths
            and not any(self._empty)
            and all(map(_contains, self._modules, self._module_names))
            and list(chain.from_iterable(self._namespaces)) == self._words
            and all(map(is_, chain.from_iterable(self._dicts), self._order))
        )

    def changes(self) -> Iterator[str]:
        """Describe the relevant keys that changed; where only irrelevant ones did, expect the new state from now on."""
        is_stale = False
        for position in range(len(self._sized)):
            if not self._is_same(position):
                found = list(self._changes_at(position))
                yield from found
                if not found:
                    self._note(position)
                    is_stale = True
        if is_stale:
            self._join()

    def _note(self, position: int) -> None:
        sized, holder = self._sized[position], self._holders[position]
        self._lengths[position] = len(holder)
        if sized.is_module:
            unread = (key for key in users_attributes(holder) if (id(sized.holder), key) not in self._read)
            self._names[position] = [key for key in unread if key not in _ON_EVERY_MODULE]
        elif isinstance(holder, dict):
            self._lists[position] = list(holder)

    def _join(self) -> None:
        """Concatenate the expectations for each container into the lists that are compared at once."""
        self._modules = [self._holders[position] for position, names in self._names.items() for _ in names]
        self._module_names = list(chain.from_iterable(self._names.values()))
        self._empty = [self._holders[position] for position, keys in self._lists.items() if not keys]
        filled = [position for position in range(len(self._holders)) if self._lists.get(position) != []]
        self._filled = [self._holders[position] for position in filled]
        self._filled_lengths = [self._lengths[position] for position in filled]
        # Strings compare by value; other keys may define their own equality, and are compared by identity.
        plain = {position for position, keys in self._lists.items() if set(map(type, keys)) == {str}}
        self._namespaces = [self._holders[position] for position in plain]
        self._words = [key for position in plain for key in self._lists[position]]
        others = self._lists.keys() - plain
        self._dicts = [self._holders[position] for position in others]
        self._order = [key for position in others for key in self._lists[position]]

    def _is_same(self, position: int) -> bool:
        holder = self._holders[position]
        return (
            len(holder) == self._lengths[position]
            and all(name in holder for name in self._names.get(position, ()))
            and (position not in self._lists or all(map(is_, holder, self._lists[position])))
        )

    def _changes_at(self, position: int) -> Iterator[str]:
        sized, before, now = self._sized[position], self._keys[position], keys_of(self._sized[position])
        if isinstance(before, int) or isinstance(now, int):
            if before != now:
                yield f"{sized.path} had {before} items, has {now}"
        elif before != now:
            yield from (f"{sized.path} has {keys} now" for keys in _key_texts(now - before))
            yield from (f"{sized.path} has no {keys} any more" for keys in _key_texts(before - now))
        elif sized.has_order and not all(map(_is_same_key, sized.holder, self._lists[position])):
            yield f"{sized.path} has its items in another order"


def behind(holder: Any) -> Any:
    """The dict behind a class's read-only namespace (``mappingproxy``): lookups in it take half the time."""
    return gc.get_referents(holder)[0] if isinstance(holder, MappingProxyType) else holder


def keys_of(sized: Sized) -> frozenset[Any] | int:
    """The relevant keys, or, for lists, the length."""
    if isinstance(sized.holder, dict) or hasattr(sized.holder, "keys"):
        held = users_attributes(sized.holder) if sized.is_module else sized.holder
        return frozenset(filter(sized.may_read, held))
    return len(sized.holder)


def shrink(sized: Sized, before: frozenset[Any] | int, stack: ExitStack) -> None:
    """Remove the items that were added since, until the stack unwinds."""
    if isinstance(before, int):
        added = list(sized.holder)[before:]
        for _ in added:
            sized.holder.pop()
        stack.callback(sized.holder.extend, added)
    elif isinstance(sized.holder, dict):
        now = keys_of(sized)
        assert isinstance(now, frozenset), "a holder stays what it is"
        if now - before:
            # Called last, to restore the order: items that are put back come after all others.
            stack.callback(_reorder, sized.holder, list(sized.holder))
        for key in now - before:
            stack.callback(sized.holder.__setitem__, key, sized.holder.pop(key))


def _reorder(held: dict[Any, Any], keys: Sequence[Any]) -> None:
    for key in keys:
        held[key] = held.pop(key)


def _is_same_key(left: Any, right: Any) -> bool:
    # Tensors are hashed by identity, but compare elementwise.
    return left is right or (not isinstance(left, torch.Tensor) and bool(left == right))


def _key_texts(keys: Collection[Any]) -> Iterator[str]:
    """Each key as text; tensors, which optimizers have hundreds of as keys, by their number."""
    tensors = sum(isinstance(key, torch.Tensor) for key in keys)
    if tensors:
        yield "a tensor as a key" if tensors == 1 else f"{tensors} tensors as keys"
    yield from (repr(key) for key in keys if not isinstance(key, torch.Tensor))
