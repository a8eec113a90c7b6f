"""Regenerates outputs that are aliases from their bases, so that the caller gets real views.

Before: ``inner([x]) -> [x.t() as the graph computed it]``
After:  ``outer([x]) -> [a view of the caller's own x]``

A compiler's result has the right values, but may have any layout, and memory of its own; an alias must have exactly
eager's sizes, strides and offset in the caller's memory, which are computed from the sizes of the inputs.

Also restores outputs that require grad although no gradient flows from them to an input.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import sympy
import torch

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.autograd_function import with_graph_inside
from precast.graph.boundary import BoundaryFacts, OutputFacts, Relation
from precast.graph.sizes import as_sympy

Number = int | torch.SymInt


@dataclass(frozen=True)
class TracedLayout:
    """Sizes, strides and storage offset as traced, over the symbols in the sizes of the traced ``inputs``."""

    size: tuple[Number, ...]
    stride: tuple[Number, ...]
    offset: Number
    inputs: tuple[Any, ...]

    def __call__(self, inputs: Sequence[Any], computed: torch.Tensor) -> tuple[Sequence[int], Sequence[int], int]:
        """The layout for real inputs; data-dependent numbers are taken from the ``computed`` value."""
        if self._is_static:
            return self.size, self.stride, self.offset  # type: ignore[return-value]
        evaluate = self._evaluator(inputs)
        size = list(map(evaluate, self.size, computed.size()))
        stride = list(map(evaluate, self.stride, computed.stride()))
        return size, stride, evaluate(self.offset, int(computed.storage_offset()))

    @cached_property
    def _is_static(self) -> bool:
        return all(isinstance(number, int) for number in (*self.size, *self.stride, self.offset))

    @cached_property
    def _homes(self) -> dict[sympy.Symbol, tuple[int, int]]:
        """The input and dimension from which each symbol is read."""
        homes: dict[sympy.Symbol, tuple[int, int]] = {}
        for number, fake in enumerate(self.inputs):
            sizes: Sequence[Number] = fake.shape if isinstance(fake, torch.Tensor) else ()
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    homes.setdefault(size.node.expr, (number, dim))
        return homes

    def _evaluator(self, inputs: Sequence[Any]) -> Callable[[Number, int], int]:
        binding = as_sympy({symbol: inputs[number].size(dim) for symbol, (number, dim) in self._homes.items()})

        def evaluate(number: Number, otherwise: int) -> int:
            if isinstance(number, int):
                return number
            value = number.node.expr.xreplace(binding)
            return int(value) if value.is_number else otherwise

        return evaluate


def layout_of(value: torch.Tensor, inputs: Sequence[Any], *, offset: Number | None = None) -> TracedLayout:
    """The layout of a fake ``value`` traced from the fake ``inputs``; ``offset`` overrides its storage offset."""
    start = value.storage_offset() if offset is None else offset
    return TracedLayout(tuple(value.size()), tuple(value.stride()), start, tuple(inputs))


_FROM_INPUTS = (Relation.IS_INPUT, Relation.VIEW_OF_INPUT)
_FROM_OUTPUTS = (Relation.IS_OUTPUT, Relation.VIEW_OF_OUTPUT)

_Alias = tuple[int, OutputFacts, TracedLayout | None]
"""An output's position, its facts, and its layout if that must be computed."""


def regenerate_aliases(inner: FlatCall, facts: BoundaryFacts, fakes: Sequence[Any]) -> FlatCall:
    """Wrap ``inner``, which returns outputs and then intermediate bases, to return only outputs, aliased as in eager.

    ``fakes`` are the inputs that it was traced with.
    """
    count = len(facts.outputs)
    values = facts.values[len(facts.updated) :]
    aliases = [(i, fact, _layout(fact, values[i], fakes)) for i, fact in enumerate(facts.outputs)]
    leaves = [i for i, fact in enumerate(facts.outputs) if fact.relation is Relation.FRESH and fact.is_leaf]
    graphs_inside = [i for i, fact in enumerate(facts.outputs) if fact.needs_tangent and not facts.is_differentiable]
    from_inputs = [alias for alias in aliases if alias[1].relation in _FROM_INPUTS]
    from_bases = [alias for alias in aliases if alias[1].relation is Relation.VIEW_OF_BASE]
    from_outputs = [alias for alias in aliases if alias[1].relation in _FROM_OUTPUTS]

    def call(inputs: Sequence[Any]) -> list[Any]:
        # The callee may empty its list of inputs.
        originals = list(inputs)
        results = inner(inputs)
        outputs, bases = results[:count], results[count:]
        for position in leaves:
            outputs[position] = outputs[position].detach().requires_grad_()
        for position in graphs_inside:
            outputs[position] = with_graph_inside(outputs[position], is_freed=False)
        _fill(outputs, from_inputs, originals.__getitem__, originals)
        _fill(outputs, from_bases, bases.__getitem__, originals)
        _fill(outputs, from_outputs, outputs.__getitem__, originals)
        return outputs

    return call


def views_with_backwards(facts: BoundaryFacts, fakes: Sequence[Any]) -> dict[int, Callable[[Sequence[Any], Any], Any]]:
    """Functions that make the results which are views of inputs with a backward of their own, by result number."""
    values, start = facts.values[len(facts.updated) :], len(facts.updated)
    views = [(i, fact) for i, fact in enumerate(facts.outputs) if fact.relation is Relation.FRESH and fact.replay]
    return {start + i: partial(_view_of_input, fact, _layout(fact, values[i], fakes)) for i, fact in views}


def _view_of_input(facts: OutputFacts, layout: TracedLayout | None, inputs: Sequence[Any], computed: Any) -> Any:
    assert facts.base is not None, "a view of an input names it"
    return _cut(inputs[facts.base], facts, layout, inputs, computed)


def _layout(facts: OutputFacts, value: Any, fakes: Sequence[Any]) -> TracedLayout | None:
    if facts.replay is None or facts.replay.steps is not None:
        return None
    return layout_of(value, fakes, offset=facts.replay.offset_from_base)


def _fill(outputs: list[Any], aliases: Sequence[_Alias], base_of: Callable[[int], Any], inputs: Sequence[Any]) -> None:
    for position, facts, layout in aliases:
        assert facts.base is not None, "an alias names what it aliases"
        base = base_of(facts.base)
        if facts.replay is None:
            outputs[position] = base
            continue
        is_made_without_grad = facts.is_leaf and base.requires_grad and not facts.replay.is_detached
        with torch.no_grad() if is_made_without_grad else nullcontext():
            alias = _cut(base, facts, layout, inputs, outputs[position])
        if alias.requires_grad and not facts.requires_grad:
            alias = alias.detach()
        elif facts.is_leaf and not is_made_without_grad:
            alias.requires_grad_()
        outputs[position] = alias


def _cut(
    base: torch.Tensor, facts: OutputFacts, layout: TracedLayout | None, inputs: Sequence[Any], computed: Any
) -> torch.Tensor:
    assert facts.replay is not None, "a view has a replay"
    source = base.detach() if facts.replay.is_detached else base
    if facts.replay.steps is not None:
        return torch._C._functionalization.apply_view_meta_sequence(source, list(facts.replay.steps))
    assert layout is not None, "a view without steps has a layout"
    size, stride, offset = layout(inputs, computed)
    return source.as_strided(size, stride, base.storage_offset() + offset)
