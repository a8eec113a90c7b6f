"""Makes outputs that alias something again from what they alias, so that the caller holds real views.

Before: ``inner([x]) -> [x.t() as the graph computed it]``
After:  ``outer([x]) -> [a view of the caller's own x]``
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.ir.boundary import BoundaryFacts, OutputFacts, Relation

_FROM_INPUTS = (Relation.IS_INPUT, Relation.VIEW_OF_INPUT)
_FROM_OUTPUTS = (Relation.IS_OUTPUT, Relation.VIEW_OF_OUTPUT)


def regenerate_aliases(inner: FlatCall, facts: BoundaryFacts) -> FlatCall:
    """Wrap ``inner``, which gives outputs and then intermediate bases, so that it gives outputs only, aliased right."""
    count = len(facts.outputs)
    from_inputs = [(i, fact) for i, fact in enumerate(facts.outputs) if fact.relation in _FROM_INPUTS]
    from_bases = [(i, fact) for i, fact in enumerate(facts.outputs) if fact.relation is Relation.VIEW_OF_BASE]
    from_outputs = [(i, fact) for i, fact in enumerate(facts.outputs) if fact.relation in _FROM_OUTPUTS]
    needed_inputs = {fact.base for _, fact in from_inputs}

    def call(inputs: Sequence[Any]) -> list[Any]:
        originals = {number: inputs[number] for number in needed_inputs if number is not None}
        results = inner(inputs)
        outputs, bases = results[:count], results[count:]
        _fill(outputs, from_inputs, originals.__getitem__)
        _fill(outputs, from_bases, bases.__getitem__)
        _fill(outputs, from_outputs, outputs.__getitem__)
        return outputs

    return call


def _fill(outputs: list[Any], aliases: Sequence[tuple[int, OutputFacts]], base_of: Callable[[int], Any]) -> None:
    for position, fact in aliases:
        assert fact.base is not None, "an alias names what it aliases"
        outputs[position] = _alias(base_of(fact.base), outputs[position], fact)


def _alias(base: torch.Tensor, computed: Any, facts: OutputFacts) -> torch.Tensor:
    if facts.relation in (Relation.IS_INPUT, Relation.IS_OUTPUT):
        return base
    assert facts.replay is not None, "a view knows how it is made"
    alias = facts.replay.apply(base, computed)
    if alias.requires_grad and not facts.requires_grad:
        return alias.detach()
    return alias
