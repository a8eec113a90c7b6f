"""From one real call to a flat function that can be traced: its state, its constants, its boundary facts.

Before: ``function(*args, **kwargs)`` over real tensors
After:  ``AnalyzedCall.flat(*tensors) -> tensors``, fake inputs to trace it with, and facts about both
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from precast.autograd.guards.changing_values import SizeRoots
from precast.autograd.guards.impure_reads import noted_impurities, suspects
from precast.autograd.guards.state import StateGuards
from precast.autograd.state_slots import ModuleSlots, captured_places
from precast.autograd.variants.compiled import OutputPlan
from precast.graph.boundary import BoundaryFacts, GradientInputs
from precast.graph.opened_objects import repeated_tensors
from precast.trace.capture.number_inputs import NumberInputs
from precast.trace.capture.prepare import FlatCallable, PreparedCall, prepare
from precast.trace.executed_code import code_being_noted
from precast.trace.functionalize import analyze
from precast.trace.record import FlatFunction
from precast.trace.state.places import Readings
from precast.trace.state.reachable import reachable_state
from precast.trace.state.reads import Reads
from precast.trace.tensor_facts import AskedFacts, refuse_own_functions


@dataclass(frozen=True)
class AnalyzedCall:
    """One call, ready to be traced: a flat function over its tensors, and its boundary facts.

    ``places`` are the positions of ``tensors`` among the state, the captured tensors, the leaves of the call, and their
    gradients; ``gradients`` says which of the tensors these gradients belong to.
    """

    prepared: PreparedCall
    flat: FlatFunction
    facts: BoundaryFacts
    places: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    captured: Readings
    outputs: OutputPlan
    guards: StateGuards
    impure_reads: tuple[str, ...]
    gradients: GradientInputs
    asked: AskedFacts

    @property
    def fakes(self) -> list[Any]:
        return [self.prepared.fake_inputs[place] for place in self.places]


def analyze_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    slots: ModuleSlots,
    roots: SizeRoots,
    numbers: NumberInputs | None = None,
) -> AnalyzedCall:
    """Analyze everything that a trace needs. Must run inside a ``tracing_session``."""
    prepared = prepare(function, args, kwargs, size_roots=roots, keeps_writes=True, numbers=numbers)
    given = [*(item.tensor for item in prepared.state), *prepared.call.leaves]
    gradients = prepared.gradients.read(given)
    values = [*given, *(each for each in gradients if each is not None)]
    places = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor))
    outputs = OutputPlan()
    tensors = tuple(values[place] for place in places)
    refuse_own_functions(tensors)
    reads = Reads.of(code_being_noted())
    asked = AskedFacts(prepared.asked.facts, frozenset(filter(reads.may_read, prepared.asked.attributes)))
    asked.check(tensors)
    state = reachable_state(function, reads, prepared.exchanged)
    captured = captured_places(prepared.state[len(slots) :], state.tensors)
    guards = StateGuards(state, () if numbers is None else numbers.all_places)
    flat = _over_tensors(function, prepared, lambda: [*slots.read(), *captured.read()], outputs, guards, numbers)
    with prepared.fakes.unrecorded(), noted_impurities(suspects(code_being_noted())) as impure_reads:
        facts = analyze(flat, [prepared.fake_inputs[place] for place in places], prepared.fakes.mode)
    if outputs.writes is not None:
        guards.pin(outputs.writes.tensor_keys)
    return AnalyzedCall(
        prepared=prepared,
        flat=flat,
        facts=facts,
        places=places,
        tensors=tensors,
        captured=captured,
        outputs=outputs,
        guards=guards,
        impure_reads=tuple(dict.fromkeys(impure_reads)),
        asked=asked,
        gradients=replace(prepared.gradients, owners=tuple(map(places.index, prepared.gradients.owners))),
    )


def _over_tensors(
    function: Callable[..., Any],
    prepared: PreparedCall,
    state: Callable[[], list[Any]],
    outputs: OutputPlan,
    guards: StateGuards,
    numbers: NumberInputs | None,
) -> FlatFunction:
    """The prepared function with tensors as its only inputs and outputs; everything else is constant.

    It may run again much later, for higher-order gradients: it holds no tensor of the call, reads ``state`` again, and
    runs in the Python state that was traced.
    """
    template, tree, gradients = list(prepared.fake_inputs), prepared.call.tree, prepared.gradients
    decisions, repeated = prepared.decisions, repeated_tensors(prepared.call.leaves)
    places = [i for i, value in enumerate(template) if isinstance(value, torch.Tensor)]

    def run(*tensors: Any) -> list[Any]:
        inputs = list(template)
        for place, tensor in zip(places, tensors, strict=True):
            inputs[place] = tensor
        with guards.assumed():
            flat = FlatCallable(
                function,
                state(),
                tree,
                returns_changes=True,
                returns_writes=True,
                numbers=numbers,
                gradients=gradients,
                decisions=decisions,
                repeated=repeated,
            )
            results = flat(*inputs)
        assert flat.out_tree is not None, "the function has run"
        owners = tuple(map(places.index, flat.gradient_owners))
        return outputs.split(
            results,
            flat.out_tree,
            has_changes=flat.has_changes,
            writes=flat.writes,
            gradient_owners=owners,
            spent=flat.spent,
            runs_backward=flat.runs_backward,
        )

    return run
