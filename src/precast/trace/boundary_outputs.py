"""The results of a functional graph for one run of a function: updated inputs, outputs, intermediate bases."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from precast.graph.boundary import BoundaryFacts, OutputFacts, Relation
from precast.graph.opened_objects import is_wrapper
from precast.ops.cost import size_hint
from precast.trace.record import FlatFunction


def boundary_outputs(inputs: Sequence[Any], outputs: Sequence[Any], facts: BoundaryFacts) -> list[Any]:
    """All values that the graph returns, given the inputs and outputs of a run, in the order of ``BoundaryFacts``."""
    updated = [inputs[number] for number in facts.updated]
    # The values are unknown while the analysis itself runs.
    values = facts.values[len(updated) : len(updated) + len(outputs)] or [None] * len(outputs)
    own = [_laid_like(output, value, fact) for output, fact, value in zip(outputs, facts.outputs, values, strict=True)]
    return [*updated, *own, *_intermediate_bases(outputs, facts.outputs)]


def returning_boundary(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """``function``, returning everything that the graph returns, instead of only its outputs."""

    def run(*inputs: Any) -> list[Any]:
        return boundary_outputs(inputs, function(*inputs), facts)

    return run


def _laid_like(output: Any, value: Any, facts: OutputFacts) -> Any:
    """A fresh output in the memory order of ``value``, which was computed without decompositions, as in eager."""
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
    """Dimensions from outermost to innermost; those of size 1 keep their position."""
    kept = [dim for dim in range(tensor.ndim) if size_hint(tensor.shape[dim]) != 1]
    places = iter(sorted(kept, key=lambda dim: -size_hint(tensor.stride()[dim])))
    return [next(places) if dim in kept else dim for dim in range(tensor.ndim)]


def _intermediate_bases(outputs: Sequence[Any], facts: Sequence[OutputFacts]) -> list[torch.Tensor]:
    """The tensors that outputs are views of and that are not outputs themselves, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for output, fact in zip(outputs, facts, strict=True):
        # A detached alias does not know the base; another output does.
        if fact.relation is Relation.VIEW_OF_BASE and fact.replay is not None and not fact.replay.is_detached:
            assert fact.base is not None, "a view of a base names it"
            found.setdefault(fact.base, output._base)
    return [found[number] for number in sorted(found)]
