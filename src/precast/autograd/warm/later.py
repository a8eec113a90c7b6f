"""What a warm-started call may need later: higher-order gradients, and partial backwards.

The call is analyzed when one of them is first needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.boundary.autograd_function import PartialBackward, PartialBackwards, TrainingFacts
from precast.autograd.call_parts import Gradients, Job
from precast.autograd.guards.changing_values import SizeRoots
from precast.autograd.guards.state import StateGuards
from precast.autograd.state_slots import ModuleSlots
from precast.graph.opened_objects import opened
from precast.trace.session import tracing_session

if TYPE_CHECKING:
    from precast.autograd.variants.prepare import AnalyzedCall
    from precast.trace.capture.number_inputs import NumberInputs


class Later:
    """The deferred analysis of a call. Holds no tensor of it: it uses those of the call that needs the analysis."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        slots: ModuleSlots,
        job: Job,
        roots: SizeRoots,
        numbers: "NumberInputs | None",
        guards: StateGuards,
    ) -> None:
        leaves, self._tree = pytree.tree_flatten(opened((tuple(args), dict(kwargs))))
        self._template = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._function, self._slots, self._job, self._guards = function, slots, job, guards
        self._roots, self._numbers = roots, numbers
        self._ambient, self._grad_mode = job.ambient(), torch.is_grad_enabled()
        self._gradients: Gradients | None = None
        self._partial: PartialBackwards | None = None

    def gradients(self, values: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the primals; ``values`` are primals followed by tangents."""
        if self._gradients is None:
            with self._analyzed(values) as analyzed:
                self._gradients = self._job.second_order(analyzed.flat, analyzed.facts)
        return self._gradients(values)

    def partial_backwards(self, training: TrainingFacts) -> PartialBackwards:
        """The partial backwards of a call that was compiled as ``training`` describes."""

        def make(primals: Sequence[Any], given: tuple[bool, ...]) -> PartialBackward | None:
            if self._partial is None:
                # Imported here: rarely needed, and it loads the tracer.
                from precast.autograd.variants.partial_backward import partial_backwards

                with self._analyzed(primals) as analyzed:
                    job = replace(self._job, module_names=analyzed.prepared.module_names)
                    fakes = analyzed.prepared.fakes
                    self._partial = partial_backwards(
                        analyzed.flat, analyzed.fakes, fakes, analyzed.facts, job, training
                    )
            return self._partial(primals, given)

        return make

    @contextmanager
    def _analyzed(self, values: Sequence[Any]) -> "Iterator[AnalyzedCall]":
        from precast.autograd.variants.prepare import analyze_call

        given = list(self._template)
        for place, value in zip(self._places, values[len(self._slots) :], strict=False):
            given[place] = value
        args, kwargs = pytree.tree_unflatten(given, self._tree)
        modes = torch.set_grad_enabled(self._grad_mode)
        with self._guards.assumed(), self._ambient(), modes, tracing_session():
            yield analyze_call(self._function, args, kwargs, self._slots, self._roots, self._numbers)
