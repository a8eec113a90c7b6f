"""What a functional graph returns for one run of a function: updated inputs, then outputs, then intermediate bases."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from precast.graph.boundary import BoundaryFacts, OutputFacts, Relation
from precast.graph.opened_objects import is_wrapper
from precast.ops.cost import size_hint
from precast.trace.record import FlatFunction


def boundary_outputs(inputs: Sequence[Any], outputs: Sequence[Any], facts: BoundaryFacts) -> list[Any]:
    """All values that leave the graph, given the inputs and outputs of a run, in the order of ``BoundaryFacts``."""
    updated = [inputs[number] for number in facts.updated]
    # Before the analysis has ended, nobody knows.
    values = facts.values[len(updated) : len(updated) + len(outputs)] or [None] * len(outputs)
    own = [_lying_like(output, value, fact) for output, fact, value in zip(outputs, facts.outputs, values, strict=True)]
    return [*updated, *own, *_intermediate_bases(outputs, facts.outputs)]


def returning_boundary(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """``function``, returning everything that leaves the graph instead of its outputs alone."""

    def run(*inputs: Any) -> list[Any]:
        return boundary_outputs(inputs, function(*inputs), facts)

    return run


def _lying_like(output: Any, value: Any, facts: OutputFacts) -> Any:
    """A tensor of its own memory, in the order that it has where operators are not decomposed: that is eager's."""
    if facts.relation is not Relation.FRESH or type(value) is not FakeTensor or not _is_plain(output):
        return output
    order = _memory_order(value)
    if order == _memory_order(output):
        return output
    back = sorted(range(len(order)), key=order.__getitem__)
    return output.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _is_plain(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.layout is torch.strided and not is_wrapper(output)


def _memory_order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from outermost to innermost; of size 1, where they are among their neighbours."""
    kept = [dim for dim in range(tensor.ndim) if size_hint(tensor.shape[dim]) != 1]
    places = iter(sorted(kept, key=lambda dim: -size_hint(tensor.stride()[dim])))
    return [next(places) if dim in kept else dim for dim in range(tensor.ndim)]


def _intermediate_bases(outputs: Sequence[Any], facts: Sequence[OutputFacts]) -> list[torch.Tensor]:
    """The tensors that outputs are views of and that are no outputs themselves, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for output, fact in zip(outputs, facts, strict=True):
        if fact.relation is Relation.VIEW_OF_BASE:
            assert fact.base is not None, "a view of a base names it"
            found.setdefault(fact.base, output._base)
    return [found[number] for number in sorted(found)]
