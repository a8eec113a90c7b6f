"""A compiled variant as data, and made of data again.

Kept are calls over plain tensors of fixed sizes, whose effects are updates of inputs' data, and whose compilers can
restore what they made without the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from precast.autograd.boundary.autograd_function import TrainingFacts
from precast.autograd.boundary.mutation_epilogue import Update
from precast.autograd.boxing import Compiled
from precast.autograd.call_parts import BACKWARD, FORWARD, INFERENCE, CallParts
from precast.autograd.compiled_variant import CompiledVariant, OutputPlan, Overlap
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.graph_names import Compilation
from precast.autograd.size_names import Indescribable
from precast.autograd.state_guards import StateGuards
from precast.autograd.warm.later import Later
from precast.autograd.warm.output_tree import constant_data, constant_of, tree_builder, tree_data


@runtime_checkable
class StandAloneCompiler(Protocol):
    """A compiler that can restore what it made without the graph."""

    cache_key: str

    def store_alone(self, compiled: Any, /) -> bytes | None:
        """What ``restore_alone`` needs; None if this one cannot be stored so."""

    def restore_alone(self, data: bytes, /) -> Compiled:
        """The compiled graph again; a PrecastError says that the data does not serve here."""


def compilers_by_kind(compilers: CompilersInUse) -> dict[str, StandAloneCompiler] | None:
    """The compiler for each kind of graph, if all of them can restore without the graph."""
    found: dict[str, object] = {
        INFERENCE: compilers.inference,
        FORWARD: compilers.forward,
        BACKWARD: compilers.backward,
    }
    able = {kind: each for kind, each in found.items() if isinstance(each, StandAloneCompiler)}
    return able if len(able) == len(found) else None


def variant_data(
    variant: CompiledVariant, parts: CallParts, compilers: Mapping[str, StandAloneCompiler]
) -> dict[str, Any]:
    """The variant as plain data. Raises Indescribable where it is more than that."""
    if variant.outputs.writes:
        raise Indescribable("what the program writes into Python's state")
    if variant.gradients.owners or variant.outputs.runs_backward:
        raise Indescribable("gradients that the program uses or takes itself")
    if variant.captured or variant.sizes is not None or parts.regenerate is not None:
        raise Indescribable("captured tensors, symbolic sizes or aliased outputs")
    if any(layout for sides in parts.layouts.values() for side in sides for layout in side):
        raise Indescribable("tensor subclasses")
    return {
        "places": variant.places,
        "state_count": variant.state_count,
        "outputs": _outputs_data(variant.outputs),
        "graphs": {kind: _graph_data(graph, compilers[kind]) for kind, graph in parts.graphs.items()},
        "training": None if parts.training is None else asdict(parts.training),
        "reads_grad_mode": parts.reads_grad_mode,
        "outside_autograd": parts.outside_autograd,
        "updates": [_update_data(update) for update in parts.updates],
    }


def variant_of(
    data: Mapping[str, Any],
    compilers: Mapping[str, StandAloneCompiler],
    compilation: Compilation,
    later: Later,
    guards: StateGuards,
) -> CompiledVariant:
    """The variant again. Raises Indescribable, or a compiler's PrecastError, where something is not there any more."""
    training = None if data["training"] is None else _training(data["training"])
    parts = CallParts(
        {kind: compilers[kind].restore_alone(graph.encode()) for kind, graph in data["graphs"].items()},
        training=training,
        reads_grad_mode=data["reads_grad_mode"],
        outside_autograd=data["outside_autograd"],
        updates=_updates(data["updates"]) if data["updates"] else (),
        partial=None if training is None else later.partial_backwards(training),
    )
    return CompiledVariant(
        call=parts.assemble(compilation, later.gradients if parts.training else None),
        places=tuple(data["places"]),
        state_count=data["state_count"],
        captured=(),
        captured_key=(),
        sizes=None,
        overlap=Overlap(tuple(update.number for update in parts.updates), None, None),
        outputs=_outputs(data["outputs"]),
        guards=guards,
    )


def _training(data: Mapping[str, Any]) -> TrainingFacts:
    return TrainingFacts(**{name: _tuples(data[name]) for name in data})


def _graph_data(graph: Compiled, compiler: StandAloneCompiler) -> str:
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
    from precast.ir.boundary import InputFacts

    return tuple(Update(number, InputFacts(**facts)) for number, facts in data)


def _outputs_data(outputs: OutputPlan) -> dict[str, Any]:
    assert outputs.constants is not None, "the function was traced"
    assert outputs.tree is not None, "the function was traced"
    return {
        "constants": [(position, constant_data(constant)) for position, constant in outputs.constants.items()],
        "tree": tree_data(outputs.tree),
        "is_single": outputs.is_single,
        "has_changes": outputs.has_changes,
        "refers_to_arguments": outputs.refers_to_arguments,
    }


def _outputs(data: Mapping[str, Any]) -> OutputPlan:
    constants = {position: constant_of(constant) for position, constant in data["constants"]}
    build = tree_builder(data["tree"])
    return OutputPlan(constants, None, data["is_single"], build, data["has_changes"], data["refers_to_arguments"])


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
