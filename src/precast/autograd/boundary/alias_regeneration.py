"""Makes outputs that alias something again from what they alias, so that the caller holds real views.

Before: ``inner([x]) -> [x.t() as the graph computed it]``
After:  ``outer([x]) -> [a view of the caller's own x]``
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.traced_layout import TracedLayout, layout_of
from precast.ir.boundary import BoundaryFacts, OutputFacts, Relation

_FROM_INPUTS = (Relation.IS_INPUT, Relation.VIEW_OF_INPUT)
_FROM_OUTPUTS = (Relation.IS_OUTPUT, Relation.VIEW_OF_OUTPUT)

_Alias = tuple[int, OutputFacts, TracedLayout | None]
"""An output's position, its facts, and where it lies if that must be computed."""


def regenerate_aliases(inner: FlatCall, facts: BoundaryFacts, fakes: Sequence[Any]) -> FlatCall:
    """Wrap ``inner``, which gives outputs and then intermediate bases, so that it gives outputs only, aliased right.

    ``fakes`` are the inputs that it was traced with.
    """
    count = len(facts.outputs)
    values = facts.values[len(facts.updated) :]
    aliases = [(i, fact, _layout(fact, values[i], fakes)) for i, fact in enumerate(facts.outputs)]
    from_inputs = [alias for alias in aliases if alias[1].relation in _FROM_INPUTS]
    from_bases = [alias for alias in aliases if alias[1].relation is Relation.VIEW_OF_BASE]
    from_outputs = [alias for alias in aliases if alias[1].relation in _FROM_OUTPUTS]

    def call(inputs: Sequence[Any]) -> list[Any]:
        # The callee may empty its list of inputs.
        originals = list(inputs)
        results = inner(inputs)
        outputs, bases = results[:count], results[count:]
        _fill(outputs, from_inputs, originals.__getitem__, originals)
        _fill(outputs, from_bases, bases.__getitem__, originals)
        _fill(outputs, from_outputs, outputs.__getitem__, originals)
        return outputs

    return call


def _layout(facts: OutputFacts, value: Any, fakes: Sequence[Any]) -> TracedLayout | None:
    if facts.replay is None or facts.replay.steps is not None:
        return None
    return layout_of(value, fakes, offset=facts.replay.offset_from_base)


def _fill(outputs: list[Any], aliases: Sequence[_Alias], base_of: Callable[[int], Any], inputs: Sequence[Any]) -> None:
    for position, facts, layout in aliases:
        assert facts.base is not None, "an alias names what it aliases"
        base = base_of(facts.base)
        if facts.replay is not None:
            alias = _cut(base, facts, layout, inputs, outputs[position])
            outputs[position] = alias if facts.requires_grad or not alias.requires_grad else alias.detach()
        else:
            outputs[position] = base


def _cut(
    base: torch.Tensor, facts: OutputFacts, layout: TracedLayout | None, inputs: Sequence[Any], computed: Any
) -> torch.Tensor:
    assert facts.replay is not None, "a view knows how it is made"
    if facts.replay.steps is not None:
        return torch._C._functionalization.apply_view_meta_sequence(base, list(facts.replay.steps))
    assert layout is not None, "a view without steps has a layout"
    size, stride, offset = layout(inputs, computed)
    source = base.detach() if facts.replay.is_detached else base
    return source.as_strided(size, stride, base.storage_offset() + offset)
