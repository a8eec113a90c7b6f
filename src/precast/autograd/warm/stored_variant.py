"""Converts a compiled variant to data and back.

Supports calls over plain tensors whose only effects are updates of inputs' data, and whose compilers can restore
their results without the graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.autograd_function import TrainingFacts
from precast.autograd.boundary.mutations import Update
from precast.autograd.call_parts import BACKWARD, FORWARD, INFERENCE, CallParts
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.guards.state import StateGuards
from precast.autograd.variants.compiled import CompiledVariant, OutputPlan, Overlap
from precast.autograd.warm.later import Later
from precast.autograd.warm.stored_containers import constant_data, constant_of, tree_builder, tree_data
from precast.autograd.warm.stored_state import captured_data, captured_of, writes_data, writes_of
from precast.backend import CompiledFunction, Compiler
from precast.cache import Indescribable
from precast.graph.boundary import GradientInputs
from precast.graph.compilation import Compilation
from precast.trace.state.reachable import ReachableState, reachable_state
from precast.trace.state.reads import Reads
from precast.trace.tensor_facts import AskedFacts

if TYPE_CHECKING:
    from precast.autograd.guards.sizes import SizeCheck


def compilers_by_kind(compilers: CompilersInUse) -> dict[str, Compiler] | None:
    """The compiler for each kind of graph, if all of them can restore without the graph."""
    found = {INFERENCE: compilers.inference, FORWARD: compilers.forward, BACKWARD: compilers.backward}
    return found if all(each.defines("store_alone", "restore_alone") for each in found.values()) else None


class FoundState:
    """Python state as a call of a function finds it: what its code ``read``, and ``all`` that it could write."""

    def __init__(self, function: Callable[..., Any], reads: Reads) -> None:
        self._function = function
        self.read = reachable_state(function, reads)

    @cached_property
    def all(self) -> ReachableState:
        return reachable_state(self._function, Reads.of_all_state(()))


def variant_data(variant: CompiledVariant, parts: CallParts, state: FoundState) -> dict[str, Any]:
    """The variant without its graphs as plain data. Raises Indescribable if it is not supported."""
    if (
        parts.regenerate is not None
        or parts.views
        or variant.replaces_state
        or parts.memory_bytes
        or variant.memory_asked
    ):
        raise Indescribable("aliased outputs, state that is replaced, or memory that is resized")
    if any(layout for sides in parts.layouts.values() for side in sides for layout in side):
        raise Indescribable("tensor subclasses")
    return {
        "places": variant.places,
        "state_count": variant.state_count,
        "captured": captured_data(variant.captured, state.read),
        "captured_key": repr(variant.captured_key),
        "gradients": asdict(variant.gradients),
        "sizes": None if variant.sizes is None else variant.sizes.to_data(),
        "written": variant.overlap.written,
        "asked": [sorted(variant.asked.facts), sorted(variant.asked.attributes)],
        "asked_key": repr(variant.asked_key),
        "outputs": _outputs_data(variant.outputs, state),
        "training": None if parts.training is None else asdict(parts.training),
        "reads_grad_mode": parts.reads_grad_mode,
        "outside_autograd": parts.outside_autograd,
        "updates": [_update_data(update) for update in parts.updates],
        "starting": parts.starting,
        "stopping": parts.stopping,
    }


def variant_of(data: Mapping[str, Any], values: Sequence[Any], state: FoundState) -> CompiledVariant | None:
    """Rebuild the variant, without its call; None if it is for other sizes or kinds of tensors than these.

    Raises Indescribable if something that it refers to no longer exists.
    """
    sizes = size_check(data)
    if sizes is not None and not sizes.holds(values):
        return None
    guards, outputs = StateGuards(state.read), _outputs(data["outputs"], state)
    if outputs.writes is not None:
        guards.pin(outputs.writes.tensor_keys)
    variant = CompiledVariant(
        call=list,
        places=tuple(data["places"]),
        state_count=data["state_count"],
        captured=captured_of(data["captured"], state.read),
        captured_key=(),
        sizes=sizes,
        overlap=Overlap(tuple(data["written"]), None, None),
        outputs=outputs,
        guards=guards,
        gradients=GradientInputs(*(tuple(data["gradients"][name]) for name in ("owners", "present"))),
        asked=AskedFacts(*map(frozenset, data["asked"])),
    )
    key = variant.current_key(values)
    found = replace(variant, captured_key=key)
    found = replace(found, asked_key=found.asked.key(found.inputs(values)))
    return found if [repr(key), repr(found.asked_key)] == [data["captured_key"], data["asked_key"]] else None


def call_of(
    data: Mapping[str, Any], compilers: Mapping[str, Compiler], compilation: Compilation, later: Later
) -> FlatCall:
    """Rebuild the call of a stored variant. Raises Indescribable, or a compiler's PrecastError."""
    training = None if data["training"] is None else _training(data["training"])
    parts = CallParts(
        {kind: compilers[kind].restore_alone(graph.encode()) for kind, graph in data["graphs"].items()},
        training=training,
        reads_grad_mode=data["reads_grad_mode"],
        outside_autograd=data["outside_autograd"],
        updates=_updates(data["updates"]) if data["updates"] else (),
        starting=tuple(data["starting"]),
        stopping=tuple(data["stopping"]),
        partial=None if training is None else later.partial_backwards(training),
    )
    return parts.assemble(compilation, later.gradients if parts.training else None)


def size_check(data: Mapping[str, Any]) -> "SizeCheck | None":
    """The size guards of a stored variant; None if all sizes are static."""
    if data["sizes"] is None:
        return None
    # Imported here: loading sympy takes longer than a warm start without it.
    from precast.autograd.guards.sizes import SizeCheck

    return SizeCheck.of_data(data["sizes"])


def _training(data: Mapping[str, Any]) -> TrainingFacts:
    return TrainingFacts(**{name: _tuples(data[name]) for name in data})


def graph_data(graph: CompiledFunction, compiler: Compiler) -> str:
    """One of the graphs as text. Raises Indescribable."""
    data = compiler.store_alone(graph)
    if data is None:
        raise Indescribable("a graph that its compiler cannot restore alone")
    return data.decode()


def _update_data(update: Update) -> tuple[int, dict[str, bool]]:
    facts = update.facts
    if facts.mutates_metadata or facts.replaces_storage or update.layout is not None:
        raise Indescribable("an input whose sizes or memory change")
    return update.number, {"mutates_data": True, "update_needs_gradient": facts.update_needs_gradient}


def _updates(data: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[Update, ...]:
    from precast.graph.boundary import InputFacts

    return tuple(Update(number, InputFacts(**facts)) for number, facts in data)


def _outputs_data(outputs: OutputPlan, state: FoundState) -> dict[str, Any]:
    assert outputs.constants is not None, "the function was traced"
    assert outputs.tree is not None, "the function was traced"
    return {
        "constants": [(position, constant_data(constant)) for position, constant in outputs.constants.items()],
        "tree": tree_data(outputs.tree),
        "writes": writes_data(outputs.writes, state.all) if outputs.writes else None,
        "flags": {name: getattr(outputs, name) for name in _OUTPUT_FLAGS},
        "numbers": {name: getattr(outputs, name) for name in _OUTPUT_NUMBERS},
    }


_OUTPUT_FLAGS = ("is_single", "has_changes", "refers_to_arguments", "runs_backward")
_OUTPUT_NUMBERS = ("gradient_owners", "spent")


def _outputs(data: Mapping[str, Any], state: FoundState) -> OutputPlan:
    constants = {position: constant_of(constant) for position, constant in data["constants"]}
    numbers: dict[str, Any] = {name: tuple(found) for name, found in data["numbers"].items()}
    writes = None if data["writes"] is None else writes_of(data["writes"], state.all)
    return OutputPlan(constants, build=tree_builder(data["tree"]), writes=writes, **data["flags"], **numbers)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
