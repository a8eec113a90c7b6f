"""The native backend as people choose it. The stages that make native code are loaded when something is compiled."""

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
"""The module that makes code of a graph, with all that it imports."""


@dataclass(frozen=True)
class NativeCompiler(Compiler):
    """Fused loops, built for this machine; what has no native rule calls back into torch."""

    options: Options | None = None
    is_for_inference: bool = False
    """Whether the graphs it is given are whole programs, of which nobody wants gradients."""
    target: Target | None = None
    """What code is made for; None means that the devices of a graph's tensors decide."""

    @cached_property
    def profiled(self) -> ProfiledGraphs:
        """What was compiled with ``profile=True``, to be asked for its times."""
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
        """Tells apart what other sources of ours, or other targets, would make."""
        options = as_options(self.options)
        switches = (str(bool(options.freeze)), str(options.measure))
        identities = [each.identity(options) for each in ([self.target] if self.target else targets())]
        return content_key([own_sources(_MAKER), *identities, *switches])

    def target_of(self, graph_module: fx.GraphModule) -> Target:
        """What a graph is compiled for."""
        return self.target or target_for(devices_of(graph_module.graph))

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> NativeGraph | FrozenGraph:
        return self.start(graph_module, example_inputs)()

    def get_ready(self, state: Sequence[torch.Tensor]) -> None:
        """Begin to build the routines that programs over such state call, while they are traced."""
        target = self.target or target_for(each.device.type for each in state)
        # That there is no compiler, say, is told to whoever needs it.
        with suppress(BuildError, OSError):
            target.get_ready(_likely_routines(state), as_options(self.options))

    def start(
        self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[], NativeGraph | FrozenGraph]:
        """Lower the graph and begin to build it; what is returned waits for that."""
        from precast.native.compiler import start_or_freeze

        return start_or_freeze(graph_module, self, as_options(self.options))

    def store(self, compiled: Any) -> bytes | None:
        stored = self._stored(compiled)
        return None if stored is None else stored.to_bytes()

    def _stored(self, compiled: Any) -> StoredGraph | None:
        # A profile is told in terms of the programs, which are not stored.
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
        """What is constant, and so all that follows from it, is known at the first call."""
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
    """By the ranks of parameters: matrices are multiplied, images convolved."""
    highest = max((each.ndim for each in state if each.requires_grad), default=0)
    return {"matmul", "convolution"} if highest > 3 else {"matmul"} if highest > 1 else set()


def native_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], **others: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split for native code; how that is done is loaded with the first graph."""
    from precast.native import partition as stage

    return stage.native_partition(joint_module, joint_inputs, **others)


class LaterDecompositions(Mapping[Any, Callable[..., Any]]):
    """The table of the rules there are, made when first looked at; copied and pickled by making it again."""

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


# Loaded with the backend: a first call from stored code should not wait for it.
targets()

BACKEND = Backend(
    "native",
    NativeCompiler(),
    inference_compiler=NativeCompiler(is_for_inference=True),
    partition_fn=native_partition,
    decompositions=LaterDecompositions(),
)
