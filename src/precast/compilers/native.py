"""The native backend: a functional ATen graph → C++ that this machine's compiler builds → a callable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torch import fx

from precast.build.compiler import find_compiler
from precast.build.library import Library, build, find_library
from precast.cache import content_key, open_store
from precast.codegen.describe import Entry as ProgramEntry
from precast.codegen.generate import generate
from precast.compilers.native_call import CompiledGraph, constants_of
from precast.compilers.native_decompositions import native_decompositions
from precast.compilers.native_frozen import FrozenGraph, refuse_gradients
from precast.compilers.native_lowering import segment_graph, segment_inputs
from precast.compilers.native_profile import ProfiledGraphs
from precast.compilers.native_random import draw_from_streams
from precast.compilers.native_split import SplitGraph, split_graph
from precast.compilers.native_stored import StoredGraph, called_back
from precast.compilers.registry import Backend
from precast.ir.loops.program import LoopProgram
from precast.lower import lower_graph
from precast.lower.fallback import torch_fallback
from precast.lower.fuse import fuse
from precast.lower.plan import plan
from precast.options import Options, as_options
from precast.partition import min_cut_rematerialization_partition
from precast.runtime import open_library
from precast.runtime.model import Entry

_MAKERS = ("build", "codegen", "compilers", "ir/loops", "lower", "runtime")
"""Folders whose files decide what a graph is compiled to."""


@dataclass(frozen=True)
class NativeCompiler:
    """Fused loops in C++, built by this machine's compiler; what has no native rule calls back into torch."""

    options: Options | None = None
    is_for_inference: bool = False
    """Whether the graphs it is given are whole programs, of which nobody wants gradients."""
    profiled: ProfiledGraphs = field(default_factory=ProfiledGraphs, repr=False, compare=False)
    """What was compiled with ``profile=True``, to be asked for its times."""

    def with_options(self, options: Options) -> NativeCompiler:
        return NativeCompiler(options, self.is_for_inference)

    @property
    def cache_key(self) -> str:
        """Tells apart what other sources of ours, or another C++ compiler, would make."""
        options = as_options(self.options)
        return content_key([_own_sources(), find_compiler(options.compiler).identity, str(options.freeze)])

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> NativeGraph | FrozenGraph:
        if not as_options(self.options).freeze:
            return self.compile_graph(graph_module)
        if not self.is_for_inference:
            refuse_gradients()
        return FrozenGraph(graph_module, self.compile_graph)

    def compile_graph(self, graph_module: fx.GraphModule) -> NativeGraph:
        """Compile now; the graph's attributes are constants."""
        options = as_options(self.options)
        split = prepare_graph(graph_module, options)
        entries = lower_segments(split)
        if not entries:
            return NativeGraph(split, (), StoredGraph("", (), ()), entries)
        store = open_store(options)
        with store.held():
            sources = generate(entries, profile=options.profile)
            library = build(sources, store=store, compiler=options.compiler)
            stored = StoredGraph(library.key, library.needs, tuple(called_back(entry.program) for entry in entries))
            compiled = NativeGraph(split, open_entries(library, stored.programs, split), stored, entries)
        if options.profile:
            self.profiled.add(compiled)
        return compiled

    def store(self, compiled: Any) -> bytes | None:
        # A profile is told in terms of the programs, which are not stored; constants are known at the first call only.
        if as_options(self.options).profile or isinstance(compiled, FrozenGraph):
            return None
        assert isinstance(compiled, NativeGraph)
        return compiled.stored.to_bytes()

    def restore(self, data: bytes, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> NativeGraph:
        stored = StoredGraph.from_bytes(data)
        split = prepare_graph(graph_module, as_options(self.options))
        if not stored.programs:
            return NativeGraph(split, (), stored)
        store = open_store(as_options(self.options))
        with store.held():
            library = find_library(stored.library, stored.needs, store=store)
            return NativeGraph(split, open_entries(library, stored.programs, split), stored)


class NativeGraph(CompiledGraph):
    """A compiled graph that knows what it was made of; one that was restored has no programs to show."""

    def __init__(
        self,
        split: SplitGraph,
        entries: Sequence[Entry],
        stored: StoredGraph,
        programs: Sequence[ProgramEntry] | None = None,
    ):
        super().__init__(split, entries)
        self.stored = stored
        self.programs = programs


def prepare_graph(graph_module: fx.GraphModule, options: Options) -> SplitGraph:
    """The graph with its random operators drawn as the options say, cut into what is native and what is torch's."""
    return split_graph(draw_from_streams(graph_module) if options.random == "philox" else graph_module)


def lower_segments(split: SplitGraph, *, prefix: str = "segment") -> list[ProgramEntry]:
    """The native segments as fused and planned programs, in order, named ``prefix_0``, ``prefix_1``, …"""
    entries: list[ProgramEntry] = []
    for segment in split.segments:
        if segment.is_native:
            graph = segment_graph(segment, segment_inputs(segment))
            program = fuse(lower_graph(graph, name=f"{prefix}_{len(entries)}"))
            weights = {node.name: node.name for node in segment.inputs if node.op == "get_attr"}
            entries.append(ProgramEntry(program, plan(program), weights))
    return entries


@dataclass(frozen=True)
class _HasProgram:
    program: LoopProgram


def open_entries(library: Library, programs: Sequence[LoopProgram], split: SplitGraph) -> tuple[Entry, ...]:
    """Load a library whose entries are these programs; their fallback steps call torch."""
    fallback = torch_fallback([_HasProgram(program) for program in programs])
    read = {node for segment in split.segments if segment.is_native for node in segment.inputs}
    weights = {node.name: value for node, value in constants_of(split.module).items() if node in read}
    model = open_library(library.path, needs=library.needs, weights=weights, fallback=fallback)
    entries = (model[name] for name in model.entries)
    # Only files say how an entry was called originally; those of a library take flat tensors.
    return tuple(entry for entry in entries if isinstance(entry, Entry))


@cache
def _own_sources() -> str:
    """A hash of the code that makes code: a checkout changes without its version changing."""
    root = Path(__file__).parents[1]
    paths = sorted(
        path for folder in _MAKERS for path in (root / folder).rglob("*") if path.suffix in (".py", ".h", ".cpp")
    )
    return content_key(part for path in paths for part in (str(path.relative_to(root)), path.read_bytes()))


BACKEND = Backend(
    "native",
    NativeCompiler(),
    inference_compiler=NativeCompiler(is_for_inference=True),
    partition_fn=min_cut_rematerialization_partition,
    decompositions=native_decompositions(),  # type: ignore[arg-type]
)
