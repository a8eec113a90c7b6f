"""The places where a callable's tensors are kept, so that every call reads the current ones."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_, methodcaller
from typing import Any

import torch

from precast.autograd.guards.state import addresses_of
from precast.trace.capture.module_state import StateTensor, module_state, root_modules
from precast.trace.state.places import Home, Place, Readings

_OWN_OF_MODULES = ("_parameters", "_buffers", "_modules")
_namespace, _values = attrgetter("__dict__"), methodcaller("values")


class ModuleSlots:
    """The parameters and buffers of a callable's modules; detects when modules or tensors are added, removed or tied.

    Holds the dicts that own the tensors, not the tensors: updates by optimizers, ``load_state_dict`` and assignments
    are seen, and so is a replaced dict.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        roots = root_modules(function)
        self.modules = list({id(m): m for root in roots.values() for m in root.modules()}.values())
        self._dicts = list(map(_namespace, self.modules))
        owners = [owner for m in self.modules for owner in (m._parameters, m._buffers)]
        self._parents = [m._modules for m in self.modules if m._modules]
        self._children = list(chain.from_iterable(map(_values, self._parents)))
        # Non-empty dicts may be replaced.
        self._homes = _Places((vars(m), name) for m in self.modules for name in _OWN_OF_MODULES if vars(m)[name])
        self._held = self._homes.read()
        self._lengths, self._empty = list(map(len, self._held)), [owner for owner in owners if not owner]
        self._absent = _Places((owner, name) for owner in owners for name, tensor in owner.items() if tensor is None)
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for owner in owners:
            for name, tensor in owner.items():
                places.setdefault(id(tensor), []).append((owner, name))
        found = [places[id(item.tensor)] for item in module_state(roots)]
        self._slots = _Places(first for first, *_ in found)
        self._identities = addresses_of(self._slots.read(), len(found))
        self._tied = [(first, other) for first, *others in found for other in others]
        self.structure = tuple(id(each) for m in self.modules for each in (m, vars(m), *m._modules.values()))
        """The identities of the modules, of their attribute dicts, and of their children."""
        owner_numbers = {id(owner): number for number, owner in enumerate(owners)}
        self.layout = repr(
            (
                [tuple(m._modules) for m in self.modules],
                [[name for name, tensor in owner.items() if tensor is not None] for owner in owners],
                [[(owner_numbers[id(owner)], name) for owner, name in each] for each in found if len(each) > 1],
            )
        )
        """The names of all modules and tensors, and which tensors are tied."""

    def __len__(self) -> int:
        return len(self._slots.names)

    def read(self) -> list[torch.Tensor]:
        return self._slots.read()

    def numbers_of(self, homes: Collection[Home]) -> set[int]:
        """The numbers of the tensors in these places."""
        places = zip(self._slots.owners, self._slots.names, strict=True)
        return {number for number, (owner, name) in enumerate(places) if (id(owner), name) in homes}

    def modes(self) -> tuple[bool, ...]:
        """Train or eval, for every module."""
        return tuple([module.training for module in self.modules])

    def guard_key(self) -> tuple[tuple[bool, ...], str, tuple[int, ...]]:
        """The modules' part of the guard key: the modes, and the modules' structure."""
        return self.modes(), self.layout, self.structure

    def read_current(self) -> list[torch.Tensor] | None:
        """The current tensors; None if the modules' children, or the places of tensors, have changed."""
        if not self.modules:
            return []
        tensors = self._slots.read()
        is_current = (
            list(map(len, self._held)) == self._lengths
            and not any(self._empty)
            and list(chain.from_iterable(map(_values, self._parents))) == self._children
            and all(map(is_, self._homes.read(), self._held))
            and all(map(is_, map(_namespace, self.modules), self._dicts))
            and not any(map(is_, tensors, repeat(None)))
            and all(map(is_, self._absent.read(), repeat(None)))
            and all(owner[name] is other.get(alias) for (owner, name), (other, alias) in self._tied)
            and not self._are_tied_anew(tensors)
        )
        return tensors if is_current else None

    def _are_tied_anew(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether two places hold the same tensor now that did not before."""
        identities = addresses_of(tensors, len(tensors))
        if identities != self._identities:
            # Some were replaced, which is rare; only then is the slower check needed.
            self._identities = identities
            return len(set(map(id, tensors))) < len(tensors)
        return False


class _Places:
    """Names in dicts. Every call reads hundreds of them, so a Python loop would be a visible cost."""

    def __init__(self, places: Iterable[tuple[dict[str, Any], str]]) -> None:
        listed = list(places)
        self.owners, self.names = [owner for owner, _ in listed], [name for _, name in listed]

    def read(self) -> list[Any]:
        """The values; None for a name that is gone."""
        return list(map(dict.get, self.owners, self.names))


def captured_places(captured: Sequence[StateTensor], homes: Mapping[int, Sequence[Place]]) -> Readings:
    """The place where each captured tensor is read; for one that is kept nowhere, the tensor itself."""
    return Readings([next(iter(homes.get(id(item.tensor), ())), Place("", [item.tensor], 0)) for item in captured])
