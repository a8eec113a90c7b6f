"""Assembles a compiled call from its parts.

Before: compiled graphs, and boundary facts
After:  a ``FlatCall`` with eager's effects and gradients
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.autograd_function import (
    PartialBackwards,
    TrainingFacts,
    TrainingGraphs,
    differentiable_call,
    in_grad_mode,
)
from precast.autograd.boundary.mutations import Update, apply_updates, resize_memory, switch_gradients
from precast.autograd.boxing import BoxedCall
from precast.autograd.compilers_in_use import CompilersInUse, named_call
from precast.autograd.guards.call_key import Ambient
from precast.backend import CompiledFunction
from precast.events import stage
from precast.graph.compilation import Compilation

if TYPE_CHECKING:
    from precast.autograd.boundary.subclasses import Layout
    from precast.trace.record import FlatFunction
if TYPE_CHECKING:
    from precast.graph.boundary import BoundaryFacts

INFERENCE, FORWARD, BACKWARD = "inference", "forward", "backward"
"""Kinds of graphs."""

Gradients = Callable[[Sequence[Any]], Sequence[Any]]
"""Gradients of all primals from the primals and tangents of a call, themselves differentiable.

A tangent is None if its result is not used.
"""


@dataclass(frozen=True)
class CallParts:
    """Compiled graphs by kind, and what the wrappers around them need.

    ``layouts`` says which plain tensors the inputs and results of each graph are unwrapped into. ``outside_autograd``:
    an inference graph over inputs that require grad. ``regenerate`` wraps a call so that outputs alias as in eager.
    ``partial`` makes the backward for calls that use only some results. ``memory_bytes``: the final storage sizes of
    inputs whose storage is resized. ``views`` makes results that are views with a backward of their own.
    ``starting`` and ``stopping`` are the inputs that the program makes require grad, or stop requiring it.
    """

    graphs: Mapping[str, CompiledFunction]
    layouts: "Mapping[str, tuple[Sequence[Layout], Sequence[Layout]]]" = field(default_factory=dict)
    training: TrainingFacts | None = None
    reads_grad_mode: bool = False
    outside_autograd: bool = False
    updates: tuple[Update, ...] = ()
    regenerate: Callable[[FlatCall], FlatCall] | None = None
    partial: PartialBackwards | None = None
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    views: Mapping[int, Callable[[Sequence[Any], Any], Any]] = field(default_factory=dict)
    starting: tuple[int, ...] = ()
    stopping: tuple[int, ...] = ()

    @stage
    def assemble(self, compilation: Compilation, second_order: Gradients | None) -> FlatCall:
        """Assemble the call; a training call needs ``second_order``, the gradients of its gradients."""
        if self.training is not None:
            assert second_order is not None, "gradients can be differentiated"
            call = self._training_call(compilation, second_order, self.training)
        else:
            call = self._inference_call(compilation)
        if self.updates:
            call = apply_updates(call, self.updates)
        if self.memory_bytes:
            call = resize_memory(call, self.memory_bytes)
        if self.regenerate is not None:
            call = self.regenerate(call)
        if self.starting or self.stopping:
            call = switch_gradients(call, self.starting, self.stopping)
        return call

    def _inference_call(self, compilation: Compilation) -> FlatCall:
        graph_call = self._graph_call(INFERENCE, compilation)

        def call(values: Sequence[Any]) -> list[Any]:
            return list(graph_call(list(values)))

        return torch.no_grad()(call) if self.outside_autograd else call

    def _training_call(self, compilation: Compilation, second_order: Gradients, facts: TrainingFacts) -> FlatCall:
        forward, backward = (self._graph_call(kind, compilation) for kind in (FORWARD, BACKWARD))
        assert self.partial is not None, "results can be used in part"
        takes_tangents = self._tangent_check()
        return differentiable_call(
            TrainingGraphs(forward, backward, second_order, facts, self.partial, takes_tangents, self.views)
        )

    def _tangent_check(self) -> Callable[[Sequence[Any]], bool]:
        """A check that tangents have the layouts that the backward was compiled for; None always fits."""
        layouts = self.layouts[BACKWARD][0] if BACKWARD in self.layouts else ()
        if not any(layouts):
            return lambda tangents: not any(map(is_traceable_wrapper_subclass, tangents))
        from precast.autograd.boundary.subclasses import has_layout

        return lambda tangents: all(
            tangent is None or has_layout(tangent, layout) for tangent, layout in zip(tangents, layouts, strict=False)
        )

    def _graph_call(self, kind: str, compilation: Compilation) -> BoxedCall:
        call = named_call(self.graphs[kind], compilation.graph_name(kind))
        if kind == FORWARD and self.reads_grad_mode:
            call = in_grad_mode(call)
        if kind not in self.layouts:
            return call
        from precast.autograd.boundary.subclasses import over_wrappers

        return over_wrappers(call, *self.layouts[kind])


@dataclass(frozen=True)
class Job:
    """The parameters of one compilation: its compilers, its name, and how to make second-order gradients.

    ``ambient`` records the current modes, to be re-entered when something is traced later.
    ``static_inputs`` are the inputs that persist between calls (parameters, buffers).
    """

    compilers: CompilersInUse
    compilation: Compilation
    second_order: "Callable[[FlatFunction, BoundaryFacts], Gradients]"
    ambient: Callable[[], Ambient]
    static_inputs: tuple[int, ...] = ()
    module_names: Mapping[int, str] = field(default_factory=dict)
