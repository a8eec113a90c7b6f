"""The one way from a functional graph to native programs: for compiled functions, explanations and packages alike.

Before: a graph of ATen operators, traced with the native backend's decompositions
After:  entries to generate code for, each a fused and planned loop program; what only torch can run stays between them
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from precast.codegen.describe import Entry
from precast.compilers.native_lowering import segment_graph, segment_inputs
from precast.compilers.native_random import draw_from_streams
from precast.compilers.native_split import Segment, SplitGraph, split_graph
from precast.compilers.numbers_in_tensors import keep_numbers_in_tensors
from precast.compilers.products_by_one_matrix import merge_products
from precast.ir.loops.program import LoopProgram
from precast.ir.loops.verifier import verify_loops, verify_plan
from precast.lower import lower_graph
from precast.lower.fuse import fuse
from precast.lower.plan import plan
from precast.options import Options, RandomSource, Verification, as_options


def prepare_graph(graph_module: fx.GraphModule, options: Options) -> SplitGraph:
    """The graph as it is made native, cut into what is native and what is torch's."""
    return split_graph(rewrite_graph(graph_module, random=options.random))


def rewrite_graph(graph_module: fx.GraphModule, *, random: RandomSource) -> fx.GraphModule:
    """All passes over a graph before it is lowered; random operators are drawn as ``random`` says."""
    graph_module = keep_numbers_in_tensors(graph_module)
    return merge_products(draw_from_streams(graph_module) if random == "philox" else graph_module)


def lower_segments(
    split: SplitGraph,
    *,
    prefix: str = "segment",
    on_lowered: Callable[[LoopProgram], None] | None = None,
    verify: Verification | None = None,
) -> list[Entry]:
    """The native segments as fused and planned programs, in order, named ``prefix_0``, ``prefix_1``, …

    `on_lowered` is told of each program before its loops are fused; `verify` is that of `lower_segment`.
    """
    natives = [segment for segment in split.segments if segment.is_native]
    return [
        lower_segment(segment, name=f"{prefix}_{number}", on_lowered=on_lowered, verify=verify)
        for number, segment in enumerate(natives)
    ]


def lower_segment(
    segment: Segment,
    *,
    name: str,
    on_lowered: Callable[[LoopProgram], None] | None = None,
    verify: Verification | None = None,
) -> Entry:
    """One native segment as an entry; the attributes of the graph that it reads are its weights.

    `verify` says which loop programs are checked; as the environment does, unless given.
    """
    verify = verify or as_options(None).verify
    lowered = lower_graph(segment_graph(segment, segment_inputs(segment)), name=name)
    if on_lowered is not None:
        on_lowered(lowered)
    program = fuse(lowered, verify=verify == "passes")
    places = plan(program)
    if verify != "off":
        verify_loops(program, after="the last pass")
        verify_plan(program, places)
    weights = {node.name: node.name for node in segment.inputs if node.op == "get_attr"}
    return Entry(program, places, weights)
