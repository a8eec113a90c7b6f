"""The native backend as users select it. The compilation stages are imported when something is first compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precast.backend import Backend, CompiledFunction, Compiler
from precast.cache import content_key, own_sources
from precast.errors import BuildError
from precast.graph.nodes import devices_of
from precast.native.call import CompiledGraph
from precast.native.stored_graphs import StoredGraph, open_steps
from precast.native.targets import Target, target_for, target_named, targets
from precast.options import Options, as_options

if TYPE_CHECKING:
    import torch
    from torch import fx

    from precast.native.compiler import NativeGraph
    from precast.native.frozen import FrozenGraph
    from precast.native.profile import ProfiledGraphs

_MAKER = "precast.native.compiler"
"""Imports the module that compiles graphs, with everything that it depends on."""


@dataclass(frozen=True)
class NativeCompiler(Compiler):
    """Fused loops, built for this machine; operators without a native rule call back into torch."""

    options: Options | None = None
    is_for_inference: bool = False
    """Whether the graphs are whole programs whose gradients are not needed."""
    target: Target | None = None
    """The device kind to compile for; None derives it from the devices of a graph's tensors."""

    @cached_property
    def profiled(self) -> ProfiledGraphs:
        """The graphs compiled with ``profile=True``, which hold their step times."""
        from precast.native.profile import ProfiledGraphs

        return ProfiledGraphs()

    def with_options(self, options: Options) -> NativeCompiler:
        return replace(self, options=options)

    def random_source(self) -> str:
        return as_options(self.options).random

    def holds_state(self) -> bool:
        return bool(as_options(self.options).freeze)

    def drawing_as_torch(self) -> NativeCompiler:
        return self.with_options(replace(as_options(self.options), random="eager"))

    @property
    def cache_key(self) -> str:  # type: ignore[override]  # an attribute for those who assign it
        """Distinguishes code of other versions of our sources, and of other targets."""
        options = as_options(self.options)
        switches = (str(bool(options.freeze)), str(options.measure))
        identities = [each.identity(options) for each in ([self.target] if self.target else targets())]
        return content_key([own_sources(_MAKER), *identities, *switches])

    def target_of(self, graph_module: fx.GraphModule) -> Target:
        """The target that a graph is compiled for."""
        return self.target or target_for(devices_of(graph_module.graph))

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> NativeGraph | FrozenGraph:
        return self.start(graph_module, example_inputs)()

    def get_ready(self, state: Sequence[torch.Tensor]) -> None:
        """Begin to build the routines that programs over this state call, while those programs are traced."""
        target = self.target or target_for(each.device.type for each in state)
        # A missing compiler, for example, is reported when the graph itself is compiled.
        with suppress(BuildError, OSError):
            target.get_ready(_likely_routines(state), as_options(self.options))

    def start(
        self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[], NativeGraph | FrozenGraph]:
        """Lower the graph and begin to build it; the returned function waits for the build."""
        from precast.native.compiler import start_or_freeze

        return start_or_freeze(graph_module, self, as_options(self.options))

    def store(self, compiled: Any) -> bytes | None:
        stored = self._stored(compiled)
        return None if stored is None else stored.to_bytes()

    def _stored(self, compiled: Any) -> StoredGraph | None:
        # A profile describes its times by programs, which are not stored.
        found: StoredGraph | None = None if as_options(self.options).profile else compiled.stored
        return found

    def restore(self, data: bytes, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFunction:
        stored = StoredGraph.from_bytes(data)
        if stored.steps is not None:
            return self._open(stored)
        from precast.native.compiler import restore_graph

        return restore_graph(stored, graph_module, self, as_options(self.options))

    def store_alone(self, compiled: Any) -> bytes | None:
        stored = self._stored(compiled)
        return None if stored is None or stored.steps is None else stored.to_bytes()

    def when_complete(self, compiled: Any, then: Callable[[], None]) -> None:
        """A frozen graph's constants, and so everything derived from them, are known at the first call."""
        if as_options(self.options).freeze:
            compiled.when_made(then)
        else:
            then()

    def restore_alone(self, data: bytes) -> CompiledGraph | FrozenGraph:
        return self._open(StoredGraph.from_bytes(data))

    def _open(self, stored: StoredGraph) -> CompiledGraph | FrozenGraph:
        target, options = self.target or target_named(stored.target), as_options(self.options)
        if stored.frozen is not None:
            from precast.native.frozen import restored_graph

            return restored_graph(stored, target, options)
        return CompiledGraph(open_steps(stored, target, options), stored, target)


def _likely_routines(state: Sequence[torch.Tensor]) -> set[str]:
    """Guessed from the ranks of parameters: matrices mean GEMMs, 4-d weights convolutions."""
    highest = max((each.ndim for each in state if each.requires_grad), default=0)
    return {"matmul", "convolution"} if highest > 3 else {"matmul"} if highest > 1 else set()


def native_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], **others: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Partition for native code; the implementation is imported with the first graph."""
    from precast.native import partition as stage

    return stage.native_partition(joint_module, joint_inputs, **others)


class LaterDecompositions(Mapping[Any, Callable[..., Any]]):
    """The decomposition table, built on first access; copying or pickling it rebuilds it."""

    @cached_property
    def _table(self) -> Mapping[Any, Callable[..., Any]]:
        from precast.native.decompositions.table import native_decompositions

        return native_decompositions()

    def __getitem__(self, operator: Any) -> Callable[..., Any]:
        return self._table[operator]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __reduce__(self) -> tuple[type[LaterDecompositions], tuple[()]]:
        return LaterDecompositions, ()


# Loaded with the backend, so that the first call from stored code does not wait for it.
targets()

BACKEND = Backend(
    "native",
    NativeCompiler(),
    inference_compiler=NativeCompiler(is_for_inference=True),
    partition_fn=native_partition,
    decompositions=LaterDecompositions(),
)
