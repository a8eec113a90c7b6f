"""The one path from a functional graph to native programs, for compiled functions, explanations and packages alike.

Before: a graph of ATen operators, traced with the native backend's decompositions
After:  entries to generate code for, each a fused and planned loop program, with torch segments between them

Each native segment becomes a graph of its own, which is lowered.

Before: nodes of a larger graph, which read each other, other segments' results, and sizes.
After:  a graph whose placeholders are those results, and sizes that cannot be read from a placeholder.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from precast._torch_compat import example_sizes
from precast.events import apply_pass, stage
from precast.graph.nodes import copy_provenance, mark_updating_result, set_value, subgraph_of, value_of
from precast.native.describe import Entry
from precast.native.graph_passes.complex_pairs import complex_as_pairs
from precast.native.graph_passes.numbers_in_tensors import keep_numbers_in_tensors
from precast.native.graph_passes.products_by_one_matrix import merge_products
from precast.native.loops.buffers import contiguous_buffer
from precast.native.loops.index import constant, maximum
from precast.native.loops.passes import run_loop_passes
from precast.native.loops.program import LoopProgram, Part, Plan, Repeat, Run, with_steps
from precast.native.loops.size_bounds import NO_BOUNDS, Bounds, upper_bound, with_own_bounds
from precast.native.loops.verifier import verify_loops, verify_plan
from precast.native.loops.verifier.enumeration import Sizes
from precast.native.loops.verifier.lifetimes import examples_of
from precast.native.passes.checks_first import checks_first
from precast.native.passes.memory import plan
from precast.native.random import draw_from_streams
from precast.native.rules import lower_graph
from precast.native.rules.sizes import symbols_in
from precast.native.sizes import size_readers
from precast.native.sizes_from_data import makes_sizes
from precast.native.split import Segment, SplitGraph, is_size, split_graph
from precast.native.targets import Target
from precast.options import Options, RandomSource, Verification, as_options


@dataclass(frozen=True)
class SegmentInputs:
    """A segment's arguments: values of nodes, then sizes by name."""

    nodes: tuple[fx.Node, ...]
    sizes: tuple[str, ...]


def segment_inputs(segment: Segment) -> SegmentInputs:
    """The segment's inputs, and the sizes that are neither a dimension nor the value of one of them."""
    readers = size_readers(segment.inputs).values()
    shown = {each.symbol for each in readers if (each.factor, each.offset) == (1, 0)}
    arguments = [each for node in segment.nodes for each in node.all_input_nodes if subgraph_of(each) is None]
    spoken_of = dict.fromkeys(
        name for node in (*segment.inputs, *arguments, *segment.nodes) for name in symbols_in(value_of(node))
    )
    found = {name for node in segment.nodes if makes_sizes(node) for name in symbols_in(value_of(node))}
    found -= {name for node in segment.inputs for name in symbols_in(value_of(node))}
    return SegmentInputs(segment.inputs, tuple(name for name in spoken_of if name not in shown and name not in found))


def segment_graph(segment: Segment, inputs: SegmentInputs) -> fx.GraphModule:
    """The segment as a graph of its own, ready to be lowered."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    subgraphs: dict[str, fx.GraphModule] = {}
    for node in inputs.nodes:
        copies[node] = graph.placeholder(node.name)
        set_value(copies[node], value_of(node))
    for name in inputs.sizes:
        set_value(graph.placeholder(f"size_{name}"), _size_named(name, segment))
    for node in segment.nodes:
        for argument in node.all_input_nodes:
            if argument in copies:
                continue
            if (subgraph := subgraph_of(argument)) is not None:
                copies[argument] = graph.create_node("get_attr", argument.name)
                subgraphs[argument.name] = subgraph
            elif is_size(argument):
                # Lowering reads a size from its traced value, whatever computes it.
                copies[argument] = graph.create_node("call_function", operator.index, (), name=argument.name)
                set_value(copies[argument], value_of(argument))
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copy_provenance(node, copies[node])
    for value, target in segment.updates:
        mark_updating_result(copies[target], segment.outputs.index(value))
    graph.output(tuple(copies[node] for node in segment.outputs))
    # The graph is only lowered, never called: its Python code is not generated.
    return _LazyGraphModule(subgraphs, graph)


def _size_named(name: str, segment: Segment) -> torch.SymInt:
    """A ``SymInt`` that is exactly this symbol."""
    arguments = [each for node in segment.nodes for each in node.all_input_nodes if subgraph_of(each) is None]
    every = [*segment.inputs, *segment.nodes, *arguments]
    for number in (number for node in every for number in _symbolic_numbers(value_of(node))):
        for symbol in number.node.expr.free_symbols:
            if symbol.name == name:
                shape_env = number.node.shape_env
                example = example_sizes(shape_env).get(symbol)
                hint = None if example is None else int(example)
                made: torch.SymInt = shape_env.create_symintnode(symbol, hint=hint)
                return made
    raise AssertionError(f"no value has the size {name}")


def _symbolic_numbers(value: object) -> list[torch.SymInt]:
    if isinstance(value, tuple | list):
        return [number for each in value for number in _symbolic_numbers(each)]
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return [number for number in numbers if isinstance(number, torch.SymInt)]


def prepare_graph(graph_module: fx.GraphModule, target: Target, options: Options) -> SplitGraph:
    """The rewritten graph, split into native and torch segments."""
    return split_graph(rewrite_graph(graph_module, target, random=options.random), target.device)


@stage
def rewrite_graph(graph_module: fx.GraphModule, target: Target, *, random: RandomSource) -> fx.GraphModule:
    """Run all passes over a graph before it is lowered; `random` chooses the source of random numbers."""
    graph_module = apply_pass(complex_as_pairs, graph_module)
    graph_module = apply_pass(keep_numbers_in_tensors, graph_module)
    if random == "philox":
        graph_module = apply_pass(draw_from_streams, graph_module, target.device)
    return apply_pass(merge_products, graph_module)


def lower_segments(
    split: SplitGraph,
    target: Target,
    *,
    prefix: str = "segment",
    on_lowered: Callable[[LoopProgram], None] | None = None,
    verify: Verification | None = None,
) -> Sequence[Entry]:
    """The native segments as fused and planned programs, in order, named ``prefix_0``, ``prefix_1``, …

    `on_lowered` is called with each program before its loops are fused; `verify` is passed to `lower_segment`.
    """
    natives = [segment for segment in split.segments if segment.is_native]
    return [
        lower_segment(segment, target, name=f"{prefix}_{number}", on_lowered=on_lowered, verify=verify)
        for number, segment in enumerate(natives)
    ]


def lower_segment(
    segment: Segment,
    target: Target,
    *,
    name: str,
    on_lowered: Callable[[LoopProgram], None] | None = None,
    verify: Verification | None = None,
    fails_first: bool = False,
) -> Entry:
    """One native segment as an entry; the attributes of the graph that it reads are its weights.

    `verify` says whether loop programs are verified; by default, the environment decides. With `fails_first`, inputs
    are overwritten only after the last step that may fail.
    """
    verify = verify or as_options(None).verify
    lowered = lower_graph(segment_graph(segment, segment_inputs(segment)), name=name, target=target)
    if on_lowered is not None:
        on_lowered(lowered)
    if fails_first:
        lowered = checks_first(lowered)
    program, places = fuse_and_plan(lowered, target, verify=verify == "passes")
    if verify != "off":
        verify_loops(program, after="the last pass")
        verify_plan(program, places)
    weights = {node.name: node.name for node in segment.inputs if node.op == "get_attr"}
    return Entry(program, places, weights)


def fuse_and_plan(
    program: LoopProgram,
    target: Target,
    bounds: Bounds = NO_BOUNDS,
    *,
    verify: bool,
    around: Sizes = MappingProxyType({}),
) -> tuple[LoopProgram, Plan]:
    """Fuse the program and its parts, and plan the memory of each; steps get scratch memory for their parts.

    For a part, `bounds` and `around` are upper bounds and examples of the sizes around it.
    """
    program = run_loop_passes(program, target.passes, reusing=target.reusing_passes, verify=verify, around=around)
    examples = examples_of(program, around)

    def planned(part: Part) -> Part:
        own = with_own_bounds(bounds, part.program)
        return Part(*fuse_and_plan(part.program, target, own, verify=verify, around=examples))

    steps = [
        _with_scratch(replace(step, parts=tuple(map(planned, step.parts))), bounds)
        if isinstance(step, Run | Repeat)
        else step
        for step in program.steps
    ]
    program = with_steps(program, steps)
    return program, plan(program, bounds)


def _with_scratch(step: Run | Repeat, bounds: Bounds) -> Run | Repeat:
    """The step with scratch memory for the temporaries of whichever part runs."""
    size = constant(0)
    for part in step.parts:
        assert part.plan is not None, f"the memory of {part.program.name} was not planned"
        size = maximum(size, upper_bound(part.plan.arena_size, with_own_bounds(bounds, part.program)))
    if size == constant(0):
        return step
    return replace(step, scratch=contiguous_buffer(f"{step.name} scratch", "u8", (size,)))
