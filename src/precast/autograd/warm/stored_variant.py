"""A compiled variant as data, and made of data again.

Kept are calls over plain tensors, whose effects are updates of inputs' data, and whose compilers can
restore what they made without the graph.

The containers that a function returns, as data.

What a container class is made of is told by torch's registry of containers. A class that enters itself there when it
is first used may not have done so yet, so the function that makes it is kept by its name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from precast.artifact.constants import Kind
from precast.artifact.trees import class_name
from precast.autograd.boundary.autograd_function import TrainingFacts
from precast.autograd.boundary.mutations import Update
from precast.autograd.call_parts import BACKWARD, FORWARD, INFERENCE, CallParts
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.guards.state import StateGuards
from precast.autograd.variants.compiled import CompiledVariant, OutputPlan, Overlap
from precast.autograd.warm.later import Later
from precast.backend import CompiledFunction, Compiler
from precast.cache import Indescribable
from precast.errors import ExportError
from precast.graph.compilation import Compilation
from precast.graph.constants import torch_codec
from precast.graph.opened_objects import Held
from precast.trace.capture.argument_containers import ArgumentContainer
from precast.trace.state.places import NOWHERE

if TYPE_CHECKING:
    from precast.autograd.guards.sizes import SizeCheck

Build = Callable[[Iterator[Any]], Any]
"""Takes as many leaves as it needs, and gives the container."""


def tree_data(tree: pytree.TreeSpec) -> Any:
    """The tree as plain data. Raises Indescribable for containers whose classes or contexts have no name."""
    if tree.is_leaf():
        return None
    return {
        "make": _function_data(pytree.SUPPORTED_NODES[tree.type].unflatten_fn, tree.type),
        "context": constant_data(tree.context),
        "children": [tree_data(child) for child in tree.children()],
    }


def tree_builder(data: Any) -> Build:
    """A function that builds the containers again around their leaves."""
    if data is None:
        return next
    make, context = _function(data["make"]), constant_of(data["context"])
    children = [tree_builder(child) for child in data["children"]]
    return lambda leaves: make([child(leaves) for child in children], context)


def _function_data(function: Any, kind: Any) -> Any:
    if kind in _BUILT_IN.values():
        return {"type": next(name for name, known in _BUILT_IN.items() if known is kind)}
    if isinstance(function, partial):
        held = {"args": constant_data(function.args), "keywords": constant_data(function.keywords)}
        return {"partial": _name(function.func), **held}
    return {"function": _name(function)}


_BUILT_IN = {"tuple": tuple, "list": list, "dict": dict}


def _function(data: Any) -> Callable[[Sequence[Any], Any], Any]:
    if "type" in data:
        return pytree.SUPPORTED_NODES[_BUILT_IN[data["type"]]].unflatten_fn
    if "partial" in data:
        return partial(_named(data["partial"]), *constant_of(data["args"]), **constant_of(data["keywords"]))
    found: Callable[[Sequence[Any], Any], Any] = _named(data["function"])
    return found


def _name(value: Any) -> str:
    name = class_name(value)
    if "<" in name or _named(name) is not value:
        raise Indescribable(f"the container of type {value.__qualname__}")
    return name


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise Indescribable(f"{name}, which is not there")
    return found


_CONSTANTS = torch_codec(
    **{"class": Kind((type,), _name, _named)},
    held=Kind((Held,), attrgetter("attributes"), Held, dict),
    argument=Kind((ArgumentContainer,), attrgetter("number"), ArgumentContainer, int),
)
_BASES = (int, float, complex, str, bytes, list, dict)
_PLAIN = frozenset({bool, *_BASES})


def constant_data(value: Any) -> Any:
    """A plain value as data. Raises Indescribable for any other."""
    try:
        return _CONSTANTS.write(value, _refuse_subclass)
    except ExportError as problem:
        raise Indescribable(f"a container that knows of something else: {problem.args[0].partition('.')[0]}") from None


def _refuse_subclass(value: object) -> None:
    """What a class makes of a number or a container would be lost."""
    if isinstance(value, _BASES) and type(value) not in _PLAIN:
        raise Indescribable(f"a container that knows of a {type(value).__name__}")


constant_of = _CONSTANTS.read


def compilers_by_kind(compilers: CompilersInUse) -> dict[str, Compiler] | None:
    """The compiler for each kind of graph, if all of them can restore without the graph."""
    found = {INFERENCE: compilers.inference, FORWARD: compilers.forward, BACKWARD: compilers.backward}
    return found if all(each.defines("store_alone", "restore_alone") for each in found.values()) else None


def variant_data(variant: CompiledVariant, parts: CallParts) -> dict[str, Any]:
    """The variant without its graphs as plain data. Raises Indescribable where it is more than that."""
    if variant.outputs.writes:
        raise Indescribable("what the program writes into Python's state")
    if variant.gradients.owners or variant.outputs.runs_backward:
        raise Indescribable("gradients that the program uses or takes itself")
    if variant.captured.places or parts.regenerate is not None:
        raise Indescribable("captured tensors or aliased outputs")
    if any(layout for sides in parts.layouts.values() for side in sides for layout in side):
        raise Indescribable("tensor subclasses")
    return {
        "places": variant.places,
        "state_count": variant.state_count,
        "sizes": None if variant.sizes is None else variant.sizes.to_data(),
        "written": variant.overlap.written,
        "outputs": _outputs_data(variant.outputs),
        "training": None if parts.training is None else asdict(parts.training),
        "reads_grad_mode": parts.reads_grad_mode,
        "outside_autograd": parts.outside_autograd,
        "updates": [_update_data(update) for update in parts.updates],
    }


def variant_of(
    data: Mapping[str, Any],
    compilers: Mapping[str, Compiler],
    compilation: Compilation,
    later: Later,
    guards: StateGuards,
    sizes: "SizeCheck | None",
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
        captured=NOWHERE,
        captured_key=(),
        sizes=sizes,
        overlap=Overlap(tuple(data["written"]), None, None),
        outputs=_outputs(data["outputs"]),
        guards=guards,
    )


def size_check(data: Mapping[str, Any]) -> "SizeCheck | None":
    """The check of a stored variant's sizes; None if they are all fixed."""
    if data["sizes"] is None:
        return None
    # Symbols take longer to load than a start without them takes.
    from precast.autograd.guards.sizes import SizeCheck

    return SizeCheck.of_data(data["sizes"])


def _training(data: Mapping[str, Any]) -> TrainingFacts:
    return TrainingFacts(**{name: _tuples(data[name]) for name in data})


def graph_data(graph: CompiledFunction, compiler: Compiler) -> str:
    """One of the graphs. Raises Indescribable."""
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
