"""Where the tensors that a callable refers to live, so that every call reads them as they are then."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch

from precast.trace.capture.module_state import StateTensor, module_state, root_modules
from precast.trace.state.places import Home, Place, Readings


class ModuleSlots:
    """The parameters and buffers of a callable's modules; notices when modules or tensors come, go, or are tied anew.

    Holds the dicts that own the tensors, not the tensors: optimizers, ``load_state_dict`` and assignments are seen.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        roots = root_modules(function)
        self.modules = list({id(m): m for root in roots.values() for m in root.modules()}.values())
        self._children = [(m._modules, tuple(m._modules.values())) for m in self.modules if m._modules]
        owners = [owner for m in self.modules for owner in (m._parameters, m._buffers)]
        self._owners, self._lengths = owners, list(map(len, owners))
        self._absent = _Places((owner, name) for owner in owners for name, tensor in owner.items() if tensor is None)
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for owner in owners:
            for name, tensor in owner.items():
                places.setdefault(id(tensor), []).append((owner, name))
        found = [places[id(item.tensor)] for item in module_state(roots)]
        self._slots = _Places(first for first, *_ in found)
        self._identities = [id(first[0][first[1]]) for first, *_ in found]
        self._tied = [(first, other) for first, *others in found for other in others]
        self.structure = tuple(id(each) for m in self.modules for each in (m, *m._modules.values()))
        """Which modules these are, and how they are nested."""
        owner_numbers = {id(owner): number for number, owner in enumerate(owners)}
        self.layout = repr(
            (
                [tuple(m._modules) for m in self.modules],
                [[name for name, tensor in owner.items() if tensor is not None] for owner in owners],
                [[(owner_numbers[id(owner)], name) for owner, name in each] for each in found if len(each) > 1],
            )
        )
        """The names of all modules and tensors, and which tensors are one."""

    def __len__(self) -> int:
        return len(self._slots.names)

    def read(self) -> list[torch.Tensor]:
        return self._slots.read()

    def numbers_of(self, homes: Collection[Home]) -> set[int]:
        """Which of the tensors are in these places."""
        places = zip(self._slots.owners, self._slots.names, strict=True)
        return {number for number, (owner, name) in enumerate(places) if (id(owner), name) in homes}

    def modes(self) -> tuple[bool, ...]:
        """Train or eval, for every module."""
        return tuple([module.training for module in self.modules])

    def guard_key(self) -> tuple[tuple[bool, ...], str, tuple[int, ...]]:
        """What variants are found by: the modes, and what the modules are."""
        return self.modes(), self.layout, self.structure

    def read_current(self) -> list[torch.Tensor] | None:
        """The tensors, if the modules still have the children and the tensors that were found."""
        if not self.modules:
            return []
        tensors = self._slots.read()
        is_current = (
            all(tuple(owner.values()) == children for owner, children in self._children)
            and list(map(len, self._owners)) == self._lengths
            and not any(map(is_, tensors, repeat(None)))
            and all(map(is_, self._absent.read(), repeat(None)))
            and all(owner[name] is other.get(alias) for (owner, name), (other, alias) in self._tied)
            and not self._are_tied_anew(tensors)
        )
        return tensors if is_current else None

    def _are_tied_anew(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether two places hold one tensor now that did not before."""
        identities = list(map(id, tensors))
        if identities != self._identities:
            # Some were replaced, which is seldom: hundreds of them are compared at every call.
            self._identities = identities
            return len(set(identities)) < len(identities)
        return False


class _Places:
    """Names in dicts; every call reads hundreds of them, so that a loop in Python would show."""

    def __init__(self, places: Iterable[tuple[dict[str, Any], str]]) -> None:
        listed = list(places)
        self.owners, self.names = [owner for owner, _ in listed], [name for _, name in listed]

    def read(self) -> list[Any]:
        """What they hold; None where a name is gone."""
        return list(map(dict.get, self.owners, self.names))


def captured_places(captured: Sequence[StateTensor], homes: Mapping[int, Sequence[Place]]) -> Readings:
    """Where each captured tensor is read; one that is kept nowhere stays itself."""
    return Readings([next(iter(homes.get(id(item.tensor), ())), Place("", [item.tensor], 0)) for item in captured])
