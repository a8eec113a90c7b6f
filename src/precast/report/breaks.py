"""What of a program does not run as native code: where, why, and how to avoid it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from precast.autograd.uncaptured import UncapturedForward
from precast.graph.compilation import kind_of_graph
from precast.graph.nodes import has_value, source_line_of, value_of
from precast.graph.printer import target_name
from precast.native.sizes_from_data import makes_sizes
from precast.ops.facts import Fact, facts_of
from precast.ops.own_operators import random_seed
from precast.report.contents import Break
from precast.report.lowered import LoweredGraph

_FALLBACK_WHY = "This operator has no native rule for these types: native code calls back into torch."
_FALLBACK_FIX = (
    "Nothing, if it is rare: results are eager's. Packages refuse it: use operators that have a rule, or add one "
    "(docs/guides/add-an-op.md)."
)
_REASONS = {
    Fact.DATA_DEPENDENT: "Use a form with fixed sizes: a mask and torch.where in place of boolean indexing.",
    Fact.MUTATING: "Use the form of the operator that returns a new tensor.",
    Fact.EFFECTFUL: "Keep it out of the hot path; its order with other effects is kept.",
    Fact.COMMUNICATING: "Nothing: a collective overlaps with what follows until it is waited for.",
    Fact.WORKSPACE: "Nothing: torch runs it as eager does.",
}
"""Facts that keep an operator from native code → how to avoid it."""


def graph_breaks(
    found: Sequence[UncapturedForward], name_within: Callable[[Callable[..., object]], str]
) -> list[Break]:
    """The graph breaks, each line once."""
    breaks = [Break("graph break", name_within(each.function), "", each.at, each.why, each.fix) for each in found]
    return list({(each.name, each.at, each.why): each for each in breaks}.values())


def eager_fallbacks(graph: LoweredGraph) -> Iterator[Break]:
    """The eager fallbacks of a graph: torch segments, and operators called back from native code."""
    kind = kind_of_graph(graph.name)
    for entry in graph.entries:
        for step in entry.fallbacks:
            yield Break("fallback", step.operator, kind, step.at or "", _FALLBACK_WHY, _FALLBACK_FIX)
    for segment in graph.split.segments:
        for node in segment.nodes:
            if not segment.is_native and node.target is not random_seed:
                line = source_line_of(node)
                why, fix = _why_torch(node)
                yield Break("torch", target_name(node.target), kind, str(line or ""), why, fix)


def _why_torch(node: fx.Node) -> tuple[str, str]:
    for fact, fix in _REASONS.items():
        if fact in facts_of(node):
            return f"Native code does not run it: {fact.value}.", fix
    values = [value_of(each) for each in (node, *node.all_input_nodes) if has_value(each)]
    tensors = [each for value in values for each in (value if isinstance(value, tuple | list) else (value,))
               if isinstance(each, torch.Tensor)]  # fmt: skip
    if any(each.dtype.is_complex for each in tensors):
        return "There is no rule for complex numbers.", "Compute with real and imaginary parts, where speed matters."
    if any(each.layout is not torch.strided for each in tensors):
        return "Native code handles dense tensors only.", "Convert to a dense tensor before."
    if isinstance(node.target, HigherOrderOperator):
        return "A part of this control flow has no native form.", "Look for other breaks inside it in this list."
    if has_value(node) and makes_sizes(node):
        return "The size of its result is data-dependent.", _REASONS[Fact.DATA_DEPENDENT]
    return "Native code cannot hold what it takes or returns.", "Look at the types of its arguments and its result."
