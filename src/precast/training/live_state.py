"""Reads a step's state at each call, from the model and the optimizer as they are then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.optim import Optimizer

from precast.autograd.state_slots import ModuleSlots
from precast.trace.state.places import Place, Readings
from precast.training.numbers import Number
from precast.training.step_module import parameters_of

_KIND = attrgetter("dtype", "shape", "device")
"""The properties of a tensor that code is specialized for."""


_Home = tuple[str, tuple[Any, Any] | None, tuple[int, str] | None, tuple[Any, str] | None]
"""A tensor's name, and its place in the model, in the optimizer's settings, and in its state."""


class ModuleStructure:
    """All modules of a step, their modes, and which of their tensors are the optimizer's parameters.

    ``root`` reaches the modules: the model, and those that the loss function uses besides.
    """

    def __init__(self, root: Callable[..., Any], optimizer: Optimizer) -> None:
        self._root, self._optimizer = root, optimizer
        self._slots = ModuleSlots(root)
        # All slots so far: identities of modules are valid for as long as these live.
        self._found = [self._slots]
        self._known: list[int] = []
        self._trained: tuple[tuple[int, int | None], ...] = ()

    def key(self) -> Any:
        """Steps are compiled for one structure: replacing modules or parameters changes the key."""
        tensors = self._slots.read_current()
        if tensors is None:
            self._slots = ModuleSlots(self._root)
            self._found.append(self._slots)
            tensors = self._slots.read()
        parameters = list(map(id, parameters_of(self._optimizer)))
        identities = [*map(id, tensors), *parameters]
        if identities != self._known:
            numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
            self._trained = tuple((each, numbers.get(each)) for each in parameters)
            self._known = identities
        return *self._slots.guard_key(), self._trained


class LiveState:
    """The tensors of a captured step, read at each call, since the optimizer may have replaced them.

    ``names`` are those of the program; ``captured`` are the tensors that it was captured with, ``places`` those where
    other tensors are found in Python's state, by their identity.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        names: Sequence[str],
        captured: Mapping[str, torch.Tensor],
        numbers: Mapping[Number, torch.Tensor],
        places: Mapping[int, Sequence[Place]],
    ) -> None:
        self._optimizer = optimizer
        self._numbers = dict(numbers)
        self._counts = [(number, tensor) for number, tensor in numbers.items() if number.counts]
        in_model = {
            id(tensor): (holder, name)
            for module in model.modules()
            for holder in (module._parameters, module._buffers)
            for name, tensor in holder.items()
        }
        in_optimizer = {
            id(value): (parameter, name)
            for parameter, state in optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        in_groups = {
            id(value): (number, name)
            for number, group in enumerate(_settings(optimizer))
            for name, value in group.items()
            if isinstance(value, torch.Tensor)
        }
        tensors = [captured[name] for name in names]
        self._fixed = dict(zip(names, tensors, strict=True))
        self._homes: list[_Home] = [
            (name, in_model.get(id(tensor)), in_groups.get(id(tensor)), in_optimizer.get(id(tensor)))
            for name, tensor in zip(names, tensors, strict=True)
        ]
        self._elsewhere = {
            name: places[id(tensor)][0] for name, tensor in self._fixed.items() if places.get(id(tensor))
        }
        self._kinds = list(map(_KIND, tensors))
        self._parameters = list(optimizer.state)
        self._readings = self._placed()

    def read(self) -> list[Any] | None:
        """The current tensors; None if one is missing, or differs in kind from the captured one."""
        for number, tensor in self._numbers.items():
            if (value := float(number.read(self._optimizer))) != self._known.get(number):
                tensor.fill_(value)
                self._known[number] = value
        current = [*map(self._optimizer.state.get, self._parameters), *self._optimizer.param_groups]
        if len(current) != len(self._holders) or not all(map(is_, current, self._holders)):
            self._readings = self._placed()
        tensors = self._readings.read()
        try:
            return tensors if list(map(_KIND, tensors)) == self._kinds else None
        except AttributeError:
            return None

    def keep_counts(self) -> None:
        """Write the counters of a step back to the optimizer."""
        for number, tensor in self._counts:
            number.update(self._optimizer, tensor)
            self._known[number] = float(number.read(self._optimizer))

    def _placed(self) -> Readings:
        self._known = dict[Number, float]()
        states = map(self._optimizer.state.get, self._parameters)
        # Loading a state replaces both.
        self._holders = [*states, *self._optimizer.param_groups]
        return Readings([self._place(*home) for home in self._homes])

    def _place(
        self, name: str, home: tuple[Any, Any] | None, setting: tuple[int, str] | None, state: tuple[Any, str] | None
    ) -> Place:
        if home is not None:
            return Place(name, *home)
        if setting is not None:
            number, key = setting
            return Place(name, _settings(self._optimizer)[number], key)
        if state is not None:
            parameter, key = state
            return Place(name, self._optimizer.state.get(parameter) or {}, key)
        return self._elsewhere.get(name) or Place(name, self._fixed, name)


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The attributes of the optimizer, and its groups."""
    return [vars(optimizer), *optimizer.param_groups]
