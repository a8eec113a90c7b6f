"""A native segment on its own: first as a graph, then as a loop program.

Before: nodes of a larger graph, which read each other, other segments' results, and sizes.
After:  a graph whose placeholders are those results, and sizes that no placeholder shows.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from precast._torch_compat import example_sizes
from precast.compilers.native_sizes import size_readers, symbols_in
from precast.compilers.native_split import Segment, is_size
from precast.ir.node_meta import copy_provenance, mark_updating_result, set_value, value_of


@dataclass(frozen=True)
class SegmentInputs:
    """What a segment is called with: values of nodes, then sizes by name."""

    nodes: tuple[fx.Node, ...]
    sizes: tuple[str, ...]


def segment_inputs(segment: Segment) -> SegmentInputs:
    """The segment's inputs, and the sizes that none of them has as a plain dimension or value."""
    readers = size_readers(segment.inputs).values()
    shown = {each.symbol for each in readers if (each.factor, each.offset) == (1, 0)}
    arguments = [each for node in segment.nodes for each in node.all_input_nodes]
    spoken_of = dict.fromkeys(
        name for node in (*segment.inputs, *arguments, *segment.nodes) for name in symbols_in(value_of(node))
    )
    return SegmentInputs(segment.inputs, tuple(name for name in spoken_of if name not in shown))


def segment_graph(segment: Segment, inputs: SegmentInputs) -> fx.GraphModule:
    """The segment as a graph of its own, ready to be lowered."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs.nodes:
        copies[node] = graph.placeholder(node.name)
        set_value(copies[node], value_of(node))
    for name in inputs.sizes:
        set_value(graph.placeholder(f"size_{name}"), _size_named(name, segment))
    for node in segment.nodes:
        for argument in node.all_input_nodes:
            if argument not in copies and is_size(argument):
                # Lowering takes a size from its traced value, whatever computes it.
                copies[argument] = graph.create_node("call_function", operator.index, (), name=argument.name)
                set_value(copies[argument], value_of(argument))
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copy_provenance(node, copies[node])
    for value, target in segment.updates:
        mark_updating_result(copies[target], segment.outputs.index(value))
    graph.output(tuple(copies[node] for node in segment.outputs))
    # Nobody calls it: its code need not be written.
    return _LazyGraphModule({}, graph)


def _size_named(name: str, segment: Segment) -> torch.SymInt:
    """A symbolic number that is exactly this size."""
    every = [*segment.inputs, *segment.nodes, *(each for node in segment.nodes for each in node.all_input_nodes)]
    for number in (number for node in every for number in _symbolic_numbers(value_of(node))):
        for symbol in number.node.expr.free_symbols:
            if symbol.name == name:
                shape_env = number.node.shape_env
                example = example_sizes(shape_env).get(symbol)
                hint = None if example is None else int(example)
                made: torch.SymInt = shape_env.create_symintnode(symbol, hint=hint)
                return made
    raise AssertionError(f"nothing speaks of the size {name}")


def _symbolic_numbers(value: object) -> list[torch.SymInt]:
    if isinstance(value, tuple | list):
        return [number for each in value for number in _symbolic_numbers(each)]
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return [number for number in numbers if isinstance(number, torch.SymInt)]
