"""Refuses tensors that wrap memory which is written, and which the call shows in a second place too.

Before: ``f(x, y): x.mul_(2); return y + 1`` called with ``x = Wrapper(a, b), y = a``
After:  an error: compiled over ``a``, ``b`` and ``y`` apart, the program would not see the update through ``y``
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from precast.autograd.boundary.synthetic_bases import share_bytes, storage_of
from precast.errors import InputValueError
from precast.ir.boundary import InputFacts
from precast.tracing.subclasses import innermost

WrittenParts = tuple[tuple[int, ...] | None, ...]
"""For each input, which of the tensors that it wraps are written; ``None`` for an input that wraps none."""


@dataclass(frozen=True)
class _Part:
    """One plain tensor of a call: an input itself, or a tensor inside of one."""

    owner: torch.Tensor
    tensor: torch.Tensor
    is_wrapped: bool
    is_written: bool


def written_parts(inputs: Sequence[InputFacts]) -> WrittenParts | None:
    """``None`` if no input wraps others, as in most programs."""
    parts = tuple(facts.parts_written for facts in inputs)
    return parts if any(part is not None for part in parts) else None


def without_wrappers(values: Sequence[Any], parts: WrittenParts | None) -> Sequence[Any]:
    """The values, with nothing in the places of wrappers, whose own memory means nothing."""
    if parts is None:
        return values
    return [value if part is None else None for value, part in zip(values, parts, strict=True)]


def refuse_shared_parts(values: Sequence[Any], written: Collection[int], parts: WrittenParts) -> None:
    """Raise if a wrapper's memory is written, by whatever name, and shown twice; the same object twice is no matter."""
    by_storage: dict[int, list[_Part]] = {}
    for part in _parts(values, written, parts):
        if (storage := storage_of(part.tensor)) is not None:
            by_storage.setdefault(storage, []).append(part)
    for sharing in by_storage.values():
        for left, right in combinations(sharing, 2):
            if (left.is_wrapped or right.is_wrapped) and (left.is_written or right.is_written):
                _refuse_overlap(left, right)


def _parts(values: Sequence[Any], written: Collection[int], parts: WrittenParts) -> Iterator[_Part]:
    """Those of every object once, written if the program writes into any place where the object stands."""
    places: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            places.setdefault(id(value), []).append(place)
    for first, *others in places.values():
        changed = {number for place in (first, *others) for number in parts[place] or ()}
        is_written, is_wrapper = not {first, *others}.isdisjoint(written), parts[first] is not None
        for number, tensor in enumerate(innermost(values[first])):
            yield _Part(values[first], tensor, is_wrapper, number in changed if is_wrapper else is_written)


def _refuse_overlap(left: _Part, right: _Part) -> None:
    if not share_bytes(left.tensor, right.tensor):
        return
    kind = type(left.owner if left.is_wrapped else right.owner).__name__
    raise InputValueError(
        f"Inputs overlap in memory, one is written into, and one of them is a {kind}, which wraps that memory.",
        why="only the subclass knows what its memory means, so the update cannot be shown through both",
        fix="clone() one of them, or pass the same object twice.",
    )
