"""From one real call to a compiled variant of it: state, constants, overlapping inputs, then the graphs.

Before: ``function(*args, **kwargs)`` over real tensors
After:  ``CompiledVariant.run(values)`` with ``values`` the module state and the leaves of a call that fits
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.overlapping_inputs import written_parts
from precast.autograd.call_parts import CallParts, Job
from precast.autograd.guards.changing_values import SizeRoots
from precast.autograd.guards.impure_reads import noted_impurities, restored_chance, suspects
from precast.autograd.guards.sizes import SizeCheck
from precast.autograd.guards.state import StateGuards
from precast.autograd.state_slots import ModuleSlots, captured_places
from precast.autograd.uncaptured import NotCapturedError
from precast.autograd.variants.compile import compile_variant
from precast.autograd.variants.compiled import CompiledVariant, EagerVariant, OutputPlan, Overlap, has_memory
from precast.errors import CaptureError
from precast.graph.boundary import BoundaryFacts, GradientInputs
from precast.trace.capture.number_inputs import NumberInputs
from precast.trace.capture.prepare import FlatCallable, PreparedCall, prepare
from precast.trace.executed_code import code_being_noted
from precast.trace.fake_inputs import FakeInputs
from precast.trace.functionalize import analyze
from precast.trace.record import FlatFunction
from precast.trace.session import tracing_session
from precast.trace.state.places import Readings
from precast.trace.state.reachable import reachable_state
from precast.trace.state.reads import Reads
from precast.trace.storages import memory_given_away, noted_memory


@dataclass(frozen=True)
class AnalyzedCall:
    """One call, ready to be traced: a flat function over its tensors, and what that does at its border.

    ``places`` are the positions of ``tensors`` among the state, the captured tensors, the leaves of the call, and the
    gradients of those; ``gradients`` says which of the tensors these are of.
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
    """Find out all that a trace needs to know. Must run inside a ``tracing_session``."""
    prepared = prepare(function, args, kwargs, size_roots=roots, keeps_writes=True, numbers=numbers)
    given = [*(item.tensor for item in prepared.state), *prepared.call.leaves]
    gradients = prepared.gradients.read(given)
    values = [*given, *(each for each in gradients if each is not None)]
    places = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor))
    outputs = OutputPlan()
    state = reachable_state(function, Reads.of(code_being_noted()), prepared.exchanged)
    captured = captured_places(prepared.state[len(slots) :], state.tensors)
    guards = StateGuards(state, () if numbers is None else numbers.places)
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
        tensors=tuple(values[place] for place in places),
        captured=captured,
        outputs=outputs,
        guards=guards,
        impure_reads=tuple(dict.fromkeys(impure_reads)),
        gradients=replace(prepared.gradients, owners=tuple(map(places.index, prepared.gradients.owners))),
    )


def compile_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    slots: ModuleSlots,
    job: Job,
    roots: SizeRoots,
    numbers: NumberInputs | None = None,
) -> tuple[CompiledVariant, CallParts | None]:
    """Compile what one call needs; also gives of what its call is made, unless inputs are merged before it.

    Raises ``NotCapturedError`` around whatever comes out of tracing.
    """
    with tracing_session(), restored_chance(), noted_memory():
        try:
            analyzed = analyze_call(function, args, kwargs, slots, roots, numbers)
        except Exception as error:
            raise NotCapturedError(error) from error
        if analyzed.impure_reads:
            return EagerVariant.of(function, analyzed.guards, analyzed.impure_reads), None
        prepared = analyzed.prepared
        memory = {i: fact.memory_asked for i, fact in enumerate(analyzed.facts.inputs) if fact.memory_asked is not None}
        if not has_memory(analyzed.tensors, memory):
            raise NotCapturedError(memory_given_away())
        overlap = Overlap.of(analyzed.tensors, analyzed.facts.updated, written_parts(analyzed.facts.inputs))
        replaced = slots.numbers_of(prepared.exchanged)
        static_inputs = tuple(i for i in range(len(slots) or len(job.static_inputs)) if i not in replaced)
        job = replace(job, static_inputs=static_inputs, module_names=prepared.module_names)
        call, parts = _compile_overlapping(
            analyzed.flat, analyzed.tensors, analyzed.fakes, analyzed.facts, overlap, prepared.fakes, job
        )
        overlap = _with_late_updates(overlap, analyzed.tensors, parts)
    variant = CompiledVariant(
        call=call,
        places=_places_of_values(prepared, analyzed.places, len(slots)),
        state_count=len(slots),
        captured=analyzed.captured,
        captured_key=CompiledVariant.key_of(
            analyzed.tensors, [*analyzed.captured.read(), *analyzed.gradients.read(analyzed.tensors)], analyzed.outputs
        ),
        sizes=SizeCheck.of(prepared.fakes.sizes(), _expected_sizes(prepared, len(slots), roots)) if roots else None,
        overlap=overlap,
        outputs=analyzed.outputs,
        guards=analyzed.guards,
        gradients=analyzed.gradients,
        replaces_state=bool(replaced),
        memory_asked=memory,
    )
    return variant, parts


def _over_tensors(
    function: Callable[..., Any],
    prepared: PreparedCall,
    state: Callable[[], list[Any]],
    outputs: OutputPlan,
    guards: StateGuards,
    numbers: NumberInputs | None,
) -> FlatFunction:
    """The prepared function over tensor inputs alone, giving tensor outputs alone; the rest are constants.

    It may run again much later, for gradients of gradients: it holds no tensor of the call, reads ``state`` anew, and
    finds what it read of Python's state as it was.
    """
    template, tree, gradients = list(prepared.fake_inputs), prepared.call.tree, prepared.gradients
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


def _compile_overlapping(
    function: FlatFunction,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[Any],
    facts: BoundaryFacts,
    overlap: Overlap,
    fakes: FakeInputs,
    job: Job,
) -> tuple[FlatCall, CallParts | None]:
    """Compile over inputs that do not overlap, wrapped for a call whose inputs do."""
    if not overlap.plans:
        parts = compile_variant(function, inputs, fakes, facts, job)
        second_order = job.second_order(function, facts) if parts.training else None
        return parts.assemble(job.compilation, second_order), parts
    plan, *others = overlap.plans
    kept = plan.inputs(tensors)
    known = {id(tensor): value for tensor, value in zip(tensors, inputs, strict=True)}
    kept_fakes = [known[id(tensor)] if id(tensor) in known else fakes.fake(tensor) for tensor in kept]
    merged = plan.function(function)
    with fakes.unrecorded():
        merged_facts = analyze(merged, kept_fakes, fakes.mode)
    remaining = replace(overlap, duplicates=None, bases=overlap.bases if others else None)
    # Positions of state change with the merge; it is only a hint for the partitioner.
    job = replace(job, static_inputs=())
    call, _ = _compile_overlapping(merged, kept, kept_fakes, merged_facts, remaining, fakes, job)
    return plan.call(call), None


def _with_late_updates(overlap: Overlap, tensors: Sequence[torch.Tensor], parts: CallParts | None) -> Overlap:
    """The same for inputs that the backward writes into, which must share no memory with others."""
    if parts is None or parts.training is None or not parts.training.late_updates:
        return overlap
    overlap = Overlap.of(tensors, tuple(sorted({*overlap.written, *parts.training.late_updates})), overlap.parts)
    if overlap.plans:
        raise CaptureError(
            "The backward writes into a tensor that shares memory with another input.",
            why="the other one would not change with it",
            fix="Pass tensors that share no memory, or copies.",
        )
    return overlap


def _places_of_values(prepared: PreparedCall, places: Sequence[int], state_count: int) -> tuple[int, ...]:
    """Where the tensors are among a call's values, which hold the module state and the leaves only."""
    state_end = len(prepared.state)
    leaves_end = state_end + len(prepared.call.leaves)
    before = [place for place in places if place < state_count]
    after = [place - state_end + state_count for place in places if state_end <= place < leaves_end]
    return (*before, *after)


def _expected_sizes(prepared: PreparedCall, state_count: int, roots: SizeRoots) -> dict[int, list[int | str]]:
    return {
        state_count + number: [roots.get((number, dimension), size) for dimension, size in enumerate(leaf.shape)]
        for number, leaf in enumerate(prepared.call.leaves)
        if isinstance(leaf, torch.Tensor)
    }
