"""The native backend at work: a functional ATen graph → C++ that this machine's compiler builds → a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx

from precast.cache import Store, open_store
from precast.graph.compilation import get_aot_graph_name
from precast.native.autotuning import Measure, choose_ways, timer
from precast.native.backend import BACKEND as BACKEND
from precast.native.backend import NativeCompiler as NativeCompiler
from precast.native.call import CompiledGraph, constants_of
from precast.native.describe import Entry as ProgramEntry
from precast.native.fallback import torch_fallback
from precast.native.graph_passes.freezing import FrozenGraph, refuse_gradients
from precast.native.loops.program import LoopProgram
from precast.native.programs import lower_segments, prepare_graph
from precast.native.split import SplitGraph
from precast.native.stored_graphs import StoredGraph, called_back, written_in_place
from precast.native.targets.cpu.build.built import Library, find_library
from precast.native.targets.cpu.build.library import build_early, start_build
from precast.native.targets.cpu.codegen.generate import generate, routine_sources
from precast.native.targets.cpu.sources import Sources
from precast.options import Options
from precast.runtime.entry import Entry, library_entries


def start_or_freeze(
    graph_module: fx.GraphModule, compiler: NativeCompiler, options: Options
) -> Callable[[], NativeGraph | FrozenGraph]:
    """Compile now, or, where parameters are taken for constants, when the first call tells them."""
    if not options.freeze:
        return start_graph(graph_module, compiler, options)
    if not compiler.is_for_inference:
        refuse_gradients()
    frozen = FrozenGraph(graph_module, lambda module: start_graph(module, compiler, options)())
    return lambda: frozen


def start_graph(graph_module: fx.GraphModule, compiler: NativeCompiler, options: Options) -> Callable[[], NativeGraph]:
    """Lower and generate what of the graph can be native, and begin to build it; its attributes are constants."""
    split, store = prepare_graph(graph_module, options), open_store(options)
    begin_routines = partial(_begin_routines, store=store, options=options)
    entries = lower_segments(split, on_lowered=begin_routines, verify=options.verify)
    if not entries:
        return lambda: NativeGraph(split, (), StoredGraph("", (), (), ()), entries)
    if options.measure:
        entries = choose_ways(entries, store=store, measure=partial(_measure_meanwhile, entries, store, options))
    sources = generate(entries, profile=options.profile)
    building = start_build(sources, store=store, compiler=options.compiler)
    # When the build ends, another graph may have its turn.
    name = get_aot_graph_name()

    def finish() -> NativeGraph:
        with store.held():
            library = building()
            programs = [entry.program for entry in entries]
            in_place = tuple(map(written_in_place, programs))
            stored = StoredGraph(library.key, library.needs, tuple(map(called_back, programs)), in_place)
            compiled = NativeGraph(split, open_entries(library, stored.programs, weights_of(split)), stored, entries)
        if options.profile:
            compiler.profiled.add(name, compiled)
        return compiled

    return finish


def _measure_meanwhile(entries: Sequence[ProgramEntry], store: Store, options: Options) -> Measure:
    """What measures; kernels, which do not depend on what it finds, are compiled while it gets ready."""
    sources = generate(entries)
    kernels = tuple(unit for unit in sources.units if unit.effort == "loops")
    build_early(Sources(kernels, sources.headers), store=store, compiler=options.compiler)
    return timer(store=store, compiler=options.compiler)


def _begin_routines(program: LoopProgram, *, store: Store, options: Options) -> None:
    """Let the compiler work on what the program calls while its loops are fused."""
    build_early(routine_sources(program.routines), store=store, compiler=options.compiler)


def restore_graph(data: bytes, graph_module: fx.GraphModule, options: Options) -> NativeGraph:
    """What was compiled of an equal graph, over the library that was built then."""
    stored = StoredGraph.from_bytes(data)
    split = prepare_graph(graph_module, options)
    if not stored.programs:
        return NativeGraph(split, (), stored)
    store = open_store(options)
    with store.held():
        library = find_library(stored.library, stored.needs, store=store)
        return NativeGraph(split, open_entries(library, stored.programs, weights_of(split)), stored)


class NativeGraph(CompiledGraph):
    """A compiled graph that knows what it was made of; one that was restored has no programs to show."""

    def __init__(
        self,
        split: SplitGraph,
        entries: Sequence[Entry],
        stored: StoredGraph,
        programs: Sequence[ProgramEntry] | None = None,
    ):
        super().__init__(split, entries, stored.in_place)
        self.stored = stored
        self.programs = programs


@dataclass(frozen=True)
class _HasProgram:
    program: LoopProgram


def weights_of(split: SplitGraph) -> dict[str, torch.Tensor]:
    """The constants that native segments read, by the names that their programs have for them."""
    read = {node for segment in split.segments if segment.is_native for node in segment.inputs}
    return {node.name: value for node, value in constants_of(split.module).items() if node in read}


def open_entries(
    library: Library, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
) -> tuple[Entry, ...]:
    """Load a library whose entries are these programs, over their constants; their fallback steps call torch."""
    fallback = torch_fallback([_HasProgram(program) for program in programs])
    return tuple(library_entries(library.path, needs=library.needs, weights=weights, fallback=fallback))
