"""Where a step finds its state at each call: in the model and the optimizer as they are then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from precast.trace.state.places import Place, Readings
from precast.training.step_module import GroupNumber


class LiveState:
    """The tensors of a captured step, read anew at each call; the optimizer may have loaded others meanwhile.

    ``names`` are those of the program; ``captured`` are the tensors that it was captured with.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        names: Sequence[str],
        captured: Mapping[str, torch.Tensor],
        numbers: Mapping[GroupNumber, torch.Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._numbers = dict(numbers)
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
            id(value): (group, name)
            for group in optimizer.param_groups
            for name, value in group.items()
            if isinstance(value, torch.Tensor)
        }
        tensors = [captured[name] for name in names]
        self._fixed = dict(zip(names, tensors, strict=True))
        self._homes: list[tuple[str, tuple[Any, Any] | None, tuple[Any, str] | None]] = [
            (name, in_model.get(id(tensor)) or in_groups.get(id(tensor)), in_optimizer.get(id(tensor)))
            for name, tensor in zip(names, tensors, strict=True)
        ]
        self._readings = self._placed()

    def read(self) -> list[Any]:
        """The tensors now; None where one is gone."""
        for number, tensor in self._numbers.items():
            if (value := float(number.read(self._optimizer))) != self._known.get(number):
                tensor.fill_(value)
                self._known[number] = value
        if self._optimizer.state is not self._state:
            self._readings = self._placed()
        return self._readings.read()

    def _placed(self) -> Readings:
        self._state, self._known = self._optimizer.state, dict[GroupNumber, float]()
        return Readings([self._place(*home) for home in self._homes])

    def _place(self, name: str, home: tuple[Any, Any] | None, state: tuple[Any, str] | None) -> Place:
        if home is not None:
            return Place(name, *home)
        if state is not None:
            parameter, key = state
            return Place(name, self._optimizer.state[parameter], key)
        return Place(name, self._fixed, name)
