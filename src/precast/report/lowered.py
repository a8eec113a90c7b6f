"""Graphs lowered for display, by explanations and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from precast.autograd.compilers_in_use import CompilersInUse, compilers_of
from precast.backend import Compiler
from precast.graph.compilation import get_aot_graph_name
from precast.graph.nodes import is_state, placeholders_of, tensor_of
from precast.native.backend import BACKEND, NativeCompiler
from precast.native.describe import Entry
from precast.native.graph_passes.freezing import freeze_graph, refuse_gradients
from precast.native.interpreted import interpret
from precast.native.loops.program import LoopProgram
from precast.native.profile import ProfiledGraph, TimedSegment
from precast.native.programs import lower_segments, prepare_graph
from precast.native.split import SplitGraph
from precast.native.targets import StepTime, Target
from precast.options import as_options

_NO_TIME = StepTime(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class LoweredGraph:
    """A graph, its segments, and the loop programs of native ones; with times, if it ran with timers."""

    name: str
    split: SplitGraph
    entries: Sequence[Entry]
    target: Target
    profiled: ProfiledGraph | None = None

    @classmethod
    def of(cls, profiled: ProfiledGraph) -> LoweredGraph:
        """The parts of a graph that was compiled with timers."""
        graph = profiled.graph
        assert graph.programs is not None, "a graph with timers is never restored"
        return cls(profiled.name, graph.split, graph.programs, graph.target, profiled)

    def segments(self) -> Iterator[TimedSegment]:
        """Its segments in execution order, with the time of each step so far."""
        if self.profiled is not None:
            yield from self.profiled.segments()
            return
        entries = iter(self.entries)
        for segment in self.split.segments:
            work: LoopProgram | tuple[fx.Node, ...] = next(entries).program if segment.is_native else segment.nodes
            yield TimedSegment(work, (_NO_TIME,) * (len(work.steps) if isinstance(work, LoopProgram) else 1))


@dataclass(frozen=True)
class _Lowering(Compiler):
    """Replaces the native compiler: records what graphs become, and returns a slow function that runs them."""

    compiler: NativeCompiler
    graphs: list[LoweredGraph]

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., object]:
        target = self.compiler.target_of(graph_module)
        split = prepare_graph(self._frozen(graph_module), target, as_options(self.compiler.options))
        self.graphs.append(LoweredGraph(get_aot_graph_name(), split, lower_segments(split, target), target))
        return interpret(graph_module, example_inputs)

    def _frozen(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph over constants, if the options request that; their metadata suffices."""
        if not self.compiler.holds_state():
            return graph_module
        if not self.compiler.is_for_inference:
            refuse_gradients()
        state = [node for node in placeholders_of(graph_module.graph) if is_state(node)]
        return freeze_graph(graph_module, {node.name: tensor_of(node) for node in state})


def lowering_compilers(compilers: CompilersInUse, graphs: list[LoweredGraph]) -> CompilersInUse:
    """Compilers that build nothing: ``graphs`` collects what they would build."""

    def lowering(compiler: Compiler) -> _Lowering:
        assert isinstance(compiler, NativeCompiler), "the native backend is ours"
        return _Lowering(compiler, graphs)

    forward, backward = lowering(compilers.forward), lowering(compilers.backward)
    return replace(compilers, forward=forward, backward=backward, inference=lowering(compilers.inference))


def native_compilers(fn: Callable[..., Any]) -> CompilersInUse:
    """The compilers of a function that was compiled natively; else those that would be used."""
    found = compilers_of(fn)
    is_native = found is not None and all(
        isinstance(each, NativeCompiler) for each in (found.forward, found.backward, found.inference)
    )
    return found if found is not None and is_native else CompilersInUse.of_backend(BACKEND, as_options(None))


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The original of a compiled function or module; anything else itself."""
    original: Callable[..., Any] = getattr(fn, "__dict__", {}).get("_precast_original", fn)
    return original
