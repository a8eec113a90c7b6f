"""The native backend's driver: a functional ATen graph → code built by a target → a callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from precast.cache import open_store
from precast.graph.compilation import get_aot_graph_name
from precast.graph.nodes import is_state, placeholders_of
from precast.native.backend import BACKEND as BACKEND
from precast.native.backend import NativeCompiler as NativeCompiler
from precast.native.call import CompiledGraph
from precast.native.describe import Entry
from precast.native.frozen import ConstantsRecorder, FrozenCall, FrozenGraph, State
from precast.native.graph_passes.freezing import freeze_graph, refuse_gradients
from precast.native.programs import lower_segments, prepare_graph
from precast.native.split import SplitGraph
from precast.native.steps import constants_of, steps_of
from precast.native.stored_graphs import StoredGraph, called_back, open_entries, written_in_place
from precast.native.targets import OpenEntry, Target
from precast.options import Options


def start_or_freeze(
    graph_module: fx.GraphModule, compiler: NativeCompiler, options: Options
) -> Callable[[], NativeGraph | FrozenGraph]:
    """Compile now, or at the first call where parameters are treated as constants."""
    if not options.freeze:
        return start_graph(graph_module, compiler, options)
    if not compiler.is_for_inference:
        refuse_gradients()
    names = [node.name if is_state(node) else None for node in placeholders_of(graph_module.graph)]
    frozen = FrozenGraph(names, lambda state: freeze(graph_module, state, compiler, options))
    return lambda: frozen


def freeze(graph_module: fx.GraphModule, state: State, compiler: NativeCompiler, options: Options) -> FrozenCall:
    """Compile a graph with its state as constants, and record how these are computed from the state."""
    with ConstantsRecorder([*state.values()]) as recorder:
        frozen = freeze_graph(graph_module, state)
    graph = start_graph(frozen, compiler, options)()
    weights, constants = weights_of(graph.split), graph.graph.constants
    wanted = [*weights.values(), *(constants[number] for number in sorted(constants))]
    is_plain = all(isinstance(each, torch.Tensor) for each in wanted)
    return FrozenCall(graph, tuple(weights), recorder.steps(wanted) if is_plain else None)


def start_graph(graph_module: fx.GraphModule, compiler: NativeCompiler, options: Options) -> Callable[[], NativeGraph]:
    """Lower the graph's native segments, generate code and begin to build it; the graph's attributes are constants."""
    target = compiler.target_of(graph_module)
    split = prepare_graph(graph_module, target, options)
    # The target prebuilds routines while the loops of the program are fused.
    entries = lower_segments(
        split,
        target,
        on_lowered=lambda program: target.get_ready(program.routines, options),
        verify=options.verify,
    )
    # By the time the build ends, the current graph may be another one.
    name = get_aot_graph_name()

    def timed(compiled: NativeGraph) -> NativeGraph:
        if options.profile:
            compiler.profiled.add(name, compiled)
        return compiled

    if not entries:
        return lambda: timed(NativeGraph(split, (), StoredGraph(target.name, "", (), (), ()), target, entries))
    if options.measure:
        entries = target.tune(entries, options)
    building = target.start(entries, options)

    def finish() -> NativeGraph:
        with open_store(options).held():
            code = building()
            programs = [entry.program for entry in entries]
            in_place = tuple(map(written_in_place, programs))
            stored = StoredGraph(target.name, code.key, code.needs, tuple(map(called_back, programs)), in_place)
            opened = target.open(code, programs, weights_of(split))
        return timed(NativeGraph(split, opened, stored, target, entries))

    return finish


def restore_graph(
    stored: StoredGraph, graph_module: fx.GraphModule, compiler: NativeCompiler, options: Options
) -> NativeGraph:
    """A compiled graph restored from stored code, for an equal graph."""
    target = compiler.target_of(graph_module)
    split = prepare_graph(graph_module, target, options)
    return NativeGraph(split, open_entries(stored, target, options)(weights_of(split)), stored, target)


class NativeGraph(CompiledGraph):
    """A compiled graph with the programs that it was lowered to; a restored one has none."""

    def __init__(
        self,
        split: SplitGraph,
        entries: Sequence[OpenEntry],
        code: StoredGraph,
        target: Target,
        programs: Sequence[Entry] | None = None,
    ):
        super().__init__(steps_of(split, entries, code.in_place), target=target)
        self.split = split
        self.target = target
        self.programs = programs
        self._code = code

    @property
    def stored(self) -> StoredGraph | None:
        return self._code.with_steps(self.graph, weights_of(self.split)) if self.target.keeps_code else None


def weights_of(split: SplitGraph) -> dict[str, torch.Tensor]:
    """The constants that native segments read, by their names in the programs."""
    read = {node for segment in split.segments if segment.is_native for node in segment.inputs}
    return {node.name: value for node, value in constants_of(split.module).items() if node in read}
