"""Refuses steps in which state that is updated shares memory with other state, or with the batch.

A program reads and writes each tensor as if nothing else were in its memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from precast.autograd.boundary.overlapping_inputs import overlapping_groups, storage_of
from precast.errors import InputValueError


class SeparateMemory:
    """Checks the tensors of each call; ``names`` are those of the state, ``written`` the inputs that are updated."""

    def __init__(self, names: Sequence[str], written: Collection[int]) -> None:
        self._names, self._written = names, frozenset(written)
        self._writes_batch = any(number >= len(names) for number in written)
        self._addresses: list[int] = []
        self._storages: frozenset[int | None] = frozenset()

    def check(self, state: Sequence[torch.Tensor], leaves: Sequence[Any]) -> None:
        """Raise if something shares memory with what is updated."""
        addresses = [tensor.data_ptr() for tensor in state]
        if addresses != self._addresses:
            self._refuse_overlaps(state)
            self._storages = frozenset(map(storage_of, state)) - {None}
            self._addresses = addresses
        if self._writes_batch or not self._storages.isdisjoint(map(storage_of, leaves)):
            self._refuse_overlaps([*state, *leaves])

    def _refuse_overlaps(self, values: Sequence[Any]) -> None:
        found = next((group for group in overlapping_groups(values) if not self._written.isdisjoint(group)), None)
        if found is None:
            return
        names = [self._name(place) for place in found]
        raise InputValueError(
            f"Tensors of a training step share memory, and one of them is updated: {', '.join(names)}.",
            why="a program reads and writes each tensor as if nothing else were in its memory",
            fix="Pass tensor.clone(); to tie parameters, assign the parameter (head.weight = embedding.weight), "
            "not its data.",
        )

    def _name(self, place: int) -> str:
        if place < len(self._names):
            return self._names[place]
        return f"tensor {place - len(self._names)} of the batch"
