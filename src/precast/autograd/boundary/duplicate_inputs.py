"""Passes a tensor that stands in two places of a call once, where the program writes into it.

Before: ``f(a, b): a.add_(1); return b`` called with ``a is b``
After:  ``g(a): f(a, a)``, so that the update of ``a`` is seen through ``b``
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.tracing.flat_function import FlatFunction


@dataclass(frozen=True)
class DuplicatePlan:
    """``sources[i]``: which of the kept inputs stands at place ``i``; ``kept``: the places that are passed on."""

    sources: tuple[int, ...]
    kept: tuple[int, ...]

    def function(self, function: FlatFunction) -> FlatFunction:
        """``function`` over the kept inputs alone."""
        return lambda *kept: function(*[kept[source] for source in self.sources])

    def inputs(self, values: Sequence[Any]) -> list[Any]:
        return [values[place] for place in self.kept]

    def call(self, inner: FlatCall) -> FlatCall:
        """A call with all inputs for one that takes the kept ones."""
        return lambda values: inner(self.inputs(values))


def plan_duplicates(values: Sequence[Any], written: Collection[int]) -> DuplicatePlan | None:
    """How to drop repeated tensors; ``None`` if none of those that are written into repeats."""
    first: dict[int, int] = {}
    places = [
        first.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i for i, value in enumerate(values)
    ]
    if all(place == i for i, place in enumerate(places)):
        return None
    written_ids = {id(values[number]) for number in written}
    # Only repeats of written tensors are merged: the others keep their own gradients.
    places = [
        place if id(value) in written_ids else i for i, (place, value) in enumerate(zip(places, values, strict=True))
    ]
    kept = tuple(i for i, place in enumerate(places) if place == i)
    if len(kept) == len(values):
        return None
    position = {place: number for number, place in enumerate(kept)}
    return DuplicatePlan(tuple(position[place] for place in places), kept)
