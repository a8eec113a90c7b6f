"""A compiled graph: runs its segments one after the other over one list of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from precast.graph.nodes import placeholders_of, tensor_of, value_of
from precast.native.programs import SegmentInputs, segment_inputs
from precast.native.sizes import SizeReader, number_of, size_readers
from precast.native.split import Segment, SplitGraph, ViewChain, computed_sizes, is_size
from precast.native.targets import OpenEntry
from precast.ops.facts import Fact, facts_of
from precast.runtime.tensors import as_tensor

Values = dict[fx.Node, Any]
Sizes = dict[str, int]


@dataclass(frozen=True)
class NativeStep:
    """One entry of the library. An entry that does nothing but return nothing has no code.

    `updated` are results that it writes into an input, each with that input.
    """

    entry: OpenEntry
    inputs: SegmentInputs
    outputs: tuple[fx.Node, ...]
    updated: tuple[tuple[fx.Node, fx.Node], ...] = ()

    def run(self, values: Values, sizes: Sizes) -> None:
        tensors: list[Any] = [values[node] for node in self.inputs.nodes]
        tensors += [as_tensor(sizes[name], name=name) for name in self.inputs.sizes]
        values.update(zip(self.outputs, self.entry.run(tensors, like_torch=True), strict=True))
        for result, source in self.updated:
            values[result] = values[source]


@dataclass(frozen=True)
class TorchStep:
    """Nodes that torch runs one by one, and which sizes follow from their results."""

    nodes: tuple[fx.Node, ...]
    readers: Mapping[fx.Node, tuple[SizeReader, ...]]

    def run(self, values: Values, sizes: Sizes) -> None:
        for node in self.nodes:
            values[node] = run_node(node, values, sizes)
            if node in self.readers:
                _read_sizes(self.readers[node], values, sizes)


@dataclass(frozen=True)
class RunningStep:
    """A step, and which values nobody reads after it."""

    step: NativeStep | TorchStep
    dead: tuple[fx.Node, ...]


def constants_of(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """What the graph reads from its module: the same at every call."""
    nodes = [node for node in module.graph.nodes if node.op == "get_attr"]
    return {node: attrgetter(str(node.target))(module) for node in nodes}


class CompiledGraph:
    """Takes one list of inputs, which it empties, and gives the list of the graph's results."""

    _boxed_call = True

    def __init__(self, split: SplitGraph, entries: Sequence[OpenEntry], in_place: Sequence[Sequence[int]]):
        """`in_place`: for each entry, the numbers of its segment's outputs that it writes into inputs."""
        self.split = split
        self.placeholders = placeholders_of(split.module.graph)
        self.constants = constants_of(split.module)
        self._passed_on = {node: self.constants[node] for node in _constants_outside_of_libraries(split)}
        self.initial_readers = tuple(size_readers(self.placeholders).values())
        self.steps = tuple(_running_steps(split, zip(entries, in_place, strict=True)))
        nodes = [each for each in split.results if isinstance(each, fx.Node) and _is_computed(each)]
        self._plain_results = nodes if len(nodes) == len(split.results) else None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        values: Values = dict(zip(self.placeholders, inputs, strict=True))
        inputs.clear()
        values.update(self._passed_on)
        sizes: Sizes = {}
        _read_sizes(self.initial_readers, values, sizes)
        for each in self.steps:
            each.step.run(values, sizes)
            for node in each.dead:
                del values[node]
        if self._plain_results is not None:
            return list(map(values.__getitem__, self._plain_results))
        return [_returned(result, values, sizes) for result in self.split.results]


def _is_computed(node: fx.Node) -> bool:
    """Whether a call has a value for the node that is the caller's to keep."""
    return node.op != "get_attr" and not is_size(node)


def _read_sizes(readers: Sequence[SizeReader], values: Values, sizes: Sizes) -> None:
    for reader in readers:
        sizes[reader.symbol] = reader.read(values[reader.node])


def _running_steps(split: SplitGraph, entries: Iterator[tuple[OpenEntry, Sequence[int]]]) -> Iterator[RunningStep]:
    deaths = _deaths(split)
    readers: dict[fx.Node, tuple[SizeReader, ...]] = {}
    for reader in computed_sizes(split.module.graph).values():
        readers[reader.node] = (*readers.get(reader.node, ()), reader)
    for segment in split.segments:
        yield RunningStep(_step(segment, entries, readers), deaths[segment])


def _step(
    segment: Segment,
    entries: Iterator[tuple[OpenEntry, Sequence[int]]],
    readers: Mapping[fx.Node, tuple[SizeReader, ...]],
) -> NativeStep | TorchStep:
    if segment.is_native:
        inputs = segment_inputs(segment)
        # Constants were handed over when the library was opened; a number was taken for a constant, or is a size.
        varying = [node for node in inputs.nodes if node.op != "get_attr"]
        passed = tuple(node for node in varying if isinstance(value_of(node), torch.Tensor))
        entry, in_place = next(entries)
        written = {segment.outputs[number] for number in in_place}
        made = tuple(node for node in segment.outputs if node not in written)
        updated = tuple(each for each in segment.updates if each[0] in written)
        return NativeStep(entry, replace(inputs, nodes=passed), made, updated)
    return TorchStep(segment.nodes, {node: readers[node] for node in segment.nodes if node in readers})


def _constants_outside_of_libraries(split: SplitGraph) -> list[fx.Node]:
    """What torch or the caller reads: libraries were handed theirs when they were opened."""
    segments = [node for segment in split.segments if not segment.is_native for node in segment.inputs]
    return [node for node in (*segments, *_returned_nodes(split)) if node.op == "get_attr"]


def _returned_nodes(split: SplitGraph) -> list[fx.Node]:
    roots = (each.root if isinstance(each, ViewChain) else each for each in split.results)
    return [each for each in roots if isinstance(each, fx.Node)]


def _deaths(split: SplitGraph) -> dict[Segment, tuple[fx.Node, ...]]:
    """For each segment, what it is the last to need; constants stay, and after the last one everything goes anyway."""
    kept = {*_returned_nodes(split), *(node for node in split.module.graph.nodes if node.op == "get_attr")}
    deaths: dict[Segment, tuple[fx.Node, ...]] = {}
    for segment in reversed(split.segments):
        inner = () if segment.is_native else tuple(node for node in segment.nodes if node not in segment.outputs)
        dead = [node for node in segment.inputs if node not in kept]
        kept |= set(dead)
        deaths[segment] = (*inner, *dead) if deaths else ()
    return deaths


def run_node(node: fx.Node, values: Values, sizes: Mapping[str, int]) -> Any:
    """Call what the node calls, outside of autograd: the graph has its own gradients."""
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: _value(argument, values, sizes))
    # What looks at grad mode finds the caller's, who saw to it that nothing here needs gradients.
    with torch.set_grad_enabled(torch.is_grad_enabled() and Fact.WORKSPACE in facts_of(node)):
        return target(*args, **kwargs)


def _value(node: fx.Node, values: Values, sizes: Mapping[str, int]) -> Any:
    if node in values:
        return values[node]
    assert is_size(node), f"{node} has no value yet"
    size = value_of(node)
    assert isinstance(size, int | torch.SymInt)
    return number_of(size, sizes)


def _own(node: fx.Node, value: Any) -> Any:
    """What callers may write into: a constant of the graph, which eager would make anew, is copied."""
    return value.clone() if node.op == "get_attr" and isinstance(value, torch.Tensor) else value


def _returned(result: object, values: Values, sizes: Mapping[str, int]) -> Any:
    if isinstance(result, fx.Node):
        return _own(result, _value(result, values, sizes))
    if not isinstance(result, ViewChain):
        return result
    value = _own(result.root, values[result.root])
    for view in result.views:
        if view.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            # An input may lie otherwise in memory than the traced one did.
            value = value.reshape([number_of(size, sizes) for size in tensor_of(view).shape])
        else:
            source = view.args[0]
            assert isinstance(source, fx.Node)
            value = run_node(view, {source: value}, sizes)
    return value
