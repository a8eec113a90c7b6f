"""Applies the updates of inputs. ``apply_updates`` copies updated values from the graph into the caller's tensors.

Before: ``inner([x]) -> [x_new, y]``
After:  ``outer([x]) -> [y]``, and ``x`` holds ``x_new``, with gradients flowing through the update as in eager.

``keep_mutations`` keeps the updates inside an inference graph, for compilers that can write into their inputs.

Before: ``graph(x) -> (x_new, y)``, and a copy of ``x_new`` into ``x`` outside
After:  ``graph(x): copy_(x, x_new); return (y,)``

``mark_updates`` marks which results compilers may write into the memory of the inputs that they update.

Before: ``graph(x, y) -> (x_new, y + 1)``, without marks
After:  the same graph; its placeholder ``x`` says that result 0 may be written into the memory of ``x``

An update is not marked if the old value, or the memory, is visible otherwise: gradients are computed from it, a result
is the input itself or the new value. Nothing is marked if the graph has checks that may fail: a call that raises must
leave its inputs unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from precast.autograd.boundary import FlatCall
from precast.graph.boundary import BoundaryFacts, InputFacts, Relation
from precast.graph.nodes import copy_provenance, mark_updating_result, placeholders_of, results_of, set_value, value_of
from precast.ops.facts import is_view
from precast.trace.raising_checks import is_check

if TYPE_CHECKING:
    from precast.autograd.boundary.alias_regeneration import TracedLayout
    from precast.graph.boundary import InputFacts

_is_inference = torch.Tensor.is_inference


@dataclass(frozen=True)
class Update:
    """The update of one input, and its new layout if that changes."""

    number: int
    facts: InputFacts
    layout: TracedLayout | None = None


def apply_updates(inner: FlatCall, updates: Sequence[Update]) -> FlatCall:
    """Wrap ``inner``, whose first results are the updated inputs, so that it applies them.

    If a result is the input itself, the graph wrote into it; only autograd's version counter must be incremented.
    """
    numbers = [update.number for update in updates]

    def call(inputs: Sequence[Any]) -> list[Any]:
        # The callee may empty its list of inputs.
        originals = list(inputs)
        _refuse_inference_tensors([originals[number] for number in numbers])
        results = inner(inputs)
        written = []
        for value, update in zip(results, updates, strict=False):
            if value is originals[update.number]:
                written.append(value)
            elif update.layout is None:
                _take_data(originals[update.number], value, update.facts)
            else:
                _take_shape(originals[update.number], value, update.facts, update.layout(originals, value))
        if written:
            torch.autograd.graph.increment_version(written)
        return results[len(updates) :]

    return call


def resize_memory(inner: FlatCall, sizes: Mapping[int, int]) -> FlatCall:
    """Wrap ``inner`` so that the storages of the inputs numbered in ``sizes`` have these sizes in bytes afterwards.

    While it runs, the storages are large enough for the tensors: the functional graph may use intermediate values.
    """

    def call(inputs: Sequence[Any]) -> list[Any]:
        tensors = {number: inputs[number] for number in sizes}
        for tensor in tensors.values():
            memory, needed = tensor.untyped_storage(), _bytes_reached(tensor)
            if memory.nbytes() < needed:
                memory.resize_(needed)
        results = inner(inputs)
        for number, tensor in tensors.items():
            tensor.untyped_storage().resize_(sizes[number])
        return results

    return call


def switch_gradients(inner: FlatCall, starting: Sequence[int], stopping: Sequence[int]) -> FlatCall:
    """Wrap ``inner`` so that inputs require grad, or do so no more, where the program says that of them.

    Those that start do so before it, for gradients that end in them; those that stop after it, for views of them.
    """

    def call(inputs: Sequence[Any]) -> list[Any]:
        stopped = [inputs[number] for number in stopping]
        for number in starting:
            inputs[number].requires_grad_()
        results = inner(inputs)
        for tensor in stopped:
            tensor.detach_()
        return results

    return call


def _bytes_reached(tensor: torch.Tensor) -> int:
    """The number of bytes from the start of the storage to the end of the tensor's last element."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size() if tensor.numel() else 0


def _refuse_inference_tensors(originals: Sequence[torch.Tensor]) -> None:
    """Raise torch's error for inference tensors, which must not be written here, before anything is written."""
    if not torch.is_inference_mode_enabled():
        for original in filter(_is_inference, originals):
            original.copy_(original)


def _take_data(original: torch.Tensor, value: torch.Tensor, facts: InputFacts) -> None:
    if facts.replaces_storage:
        # Not set_, after which gradients of the call, whose graph has been made, would not end in the tensor.
        original.data = value
    elif facts.update_needs_gradient:
        original.copy_(value)
    else:
        with torch.no_grad():
            original.copy_(value)


def _take_shape(
    original: torch.Tensor, value: torch.Tensor, facts: InputFacts, layout: tuple[Sequence[int], Sequence[int], int]
) -> None:
    """Give the caller's tensor the new sizes and strides over its own memory, and the new data if that changed too."""
    size, stride, offset = layout
    start = original.storage_offset() + offset
    end = start + 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if value.numel() and end * value.element_size() > original.untyped_storage().nbytes():
        # The program resized it (resize_): the caller's storage grows as in eager.
        with torch.no_grad():
            original.resize_(size)
            original.copy_(value)
        return
    original.as_strided_(size, stride, start)
    if facts.mutates_data:
        original.copy_(value)


def keep_mutations(module: fx.GraphModule, facts: BoundaryFacts) -> BoundaryFacts:
    """Let the graph write the inputs that change only in data; returns the facts for the remaining updates."""
    graph = module.graph
    placeholders, results, output = placeholders_of(graph), results_of(graph), graph.output_node()
    kept = [number for number in facts.updated if not facts.inputs[number].mutates_metadata]
    with graph.inserting_before(output):
        for number, value in zip(facts.updated, results, strict=False):
            if number in kept:
                arguments = (placeholders[number], value)
                write = graph.create_node("call_function", torch.ops.aten.copy_.default, arguments, name="copy_")
                set_value(write, value_of(placeholders[number]))
                if isinstance(value, fx.Node):
                    copy_provenance(value, write)
    left = [i for i in range(len(results)) if i >= len(facts.updated) or facts.updated[i] not in kept]
    output.args = (tuple(results[i] for i in left),)
    module.recompile()
    inputs = [
        InputFacts(
            requires_grad=fact.requires_grad,
            starts_requiring_grad=fact.starts_requiring_grad,
            stops_requiring_grad=fact.stops_requiring_grad,
        )
        if i in kept
        else fact
        for i, fact in enumerate(facts.inputs)
    ]
    return replace(facts, inputs=tuple(inputs), values=tuple(facts.values[i] for i in left))


def mark_updates(graph: fx.Graph, facts: BoundaryFacts, *, needed: Collection[int] = ()) -> None:
    """Mark the placeholders of a graph over plain tensors; ``needed`` are inputs whose old values are kept."""
    if any(map(is_check, graph.nodes)):
        return
    placeholders, results, count = placeholders_of(graph), results_of(graph), len(facts.updated)
    memory = [set(_shared_by(result)) for result in results]
    seen = [i for i in range(count, len(results)) if not _is_made_again(i - count, facts)]
    for position, number in enumerate(facts.updated):
        value, source = results[position], placeholders[number]
        is_seen = any(value in memory[i] for i in seen) or any(source in memory[i] for i in (*range(count), *seen))
        is_computed = isinstance(value, fx.Node) and value.op == "call_function"
        if is_computed and not is_seen and number not in needed and _changes_data_alone(facts.inputs[number]):
            mark_updating_result(source, position)


def _changes_data_alone(facts: InputFacts) -> bool:
    return not (facts.mutates_metadata or facts.replaces_storage or facts.update_needs_gradient)


def _is_made_again(output: int, facts: BoundaryFacts) -> bool:
    """Whether an output is regenerated from its base, whatever the graph returns for it."""
    return output < len(facts.outputs) and facts.outputs[output].relation is not Relation.FRESH


def _shared_by(result: object) -> Iterator[fx.Node]:
    """The nodes whose memory a result may share."""
    while isinstance(result, fx.Node):
        yield result
        source = result.args[0] if result.args else None
        is_member = result.target is operator.getitem and isinstance(source, fx.Node) and is_view(source)
        result = source if result.op == "call_function" and (is_member or is_view(result)) else None
