"""What a functional graph returns for one run of a function: updated inputs, then outputs, then intermediate bases."""

from collections.abc import Sequence
from typing import Any

import torch

from precast.ir.boundary import BoundaryFacts, OutputFacts, Relation
from precast.tracing.flat_function import FlatFunction


def boundary_outputs(inputs: Sequence[Any], outputs: Sequence[Any], facts: BoundaryFacts) -> list[Any]:
    """All values that leave the graph, given the inputs and outputs of a run, in the order of ``BoundaryFacts``."""
    updated = [inputs[number] for number in facts.updated]
    hidden = [_hide_view(output, fact) for output, fact in zip(outputs, facts.outputs, strict=True)]
    return [*updated, *hidden, *_intermediate_bases(outputs, facts.outputs)]


def returning_boundary(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """``function``, returning everything that leaves the graph instead of its outputs alone."""

    def run(*inputs: Any) -> list[Any]:
        return boundary_outputs(inputs, function(*inputs), facts)

    return run


def _hide_view(output: Any, facts: OutputFacts) -> Any:
    """An output that is the only alias of an intermediate is returned as if it had memory of its own.

    Otherwise the autograd engine would forbid callers to write into it.
    """
    return torch.ops.aten._unsafe_view(output, output.shape) if facts.hides_view else output


def _intermediate_bases(outputs: Sequence[Any], facts: Sequence[OutputFacts]) -> list[torch.Tensor]:
    """The tensors that outputs are views of and that are no outputs themselves, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for output, fact in zip(outputs, facts, strict=True):
        if fact.relation is Relation.VIEW_OF_BASE:
            assert fact.base is not None, "a view of a base names it"
            found.setdefault(fact.base, output._base)
    return [found[number] for number in sorted(found)]
