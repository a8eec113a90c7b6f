"""Builds the steps of a compiled graph from the split graph and the code of its native segments.

Before: ``SplitGraph``, segments of nodes of an fx graph
After:  ``GraphSteps``, steps over numbered values
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from precast.graph.nodes import placeholders_of, tensor_of, value_of
from precast.native.call import GraphSteps, NativeStep, OperatorCall, Reshape, Result, SizeReader, TorchStep, Value
from precast.native.loops.index import Index
from precast.native.programs import segment_inputs
from precast.native.rules.sizes import to_index
from precast.native.sizes import size_readers
from precast.native.sizes_from_data import RESHAPES
from precast.native.split import Segment, SplitGraph, ViewChain, computed_sizes, is_size
from precast.native.targets import OpenEntry
from precast.ops.facts import Fact, facts_of


def steps_of(split: SplitGraph, entries: Sequence[OpenEntry], in_place: Sequence[Sequence[int]]) -> GraphSteps:
    """`in_place`: for each entry, the numbers of the outputs that it writes into inputs."""
    return _Numbering(split).steps(zip(entries, in_place, strict=True))


def constants_of(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """What the graph reads from its module: the same at each call."""
    nodes = [node for node in module.graph.nodes if node.op == "get_attr"]
    return {node: attrgetter(str(node.target))(module) for node in nodes}


class _Numbering:
    """Numbers the values of a graph in the order in which they occur."""

    def __init__(self, split: SplitGraph) -> None:
        self._split = split
        self._inputs = placeholders_of(split.module.graph)
        passed_on = dict.fromkeys(_constants_outside_of_libraries(split))
        self._numbers = {node: number for number, node in enumerate((*self._inputs, *passed_on))}
        values = constants_of(split.module)
        self._constants = {self._numbers[node]: values[node] for node in passed_on}

    def steps(self, entries: Iterator[tuple[OpenEntry, Sequence[int]]]) -> GraphSteps:
        deaths, readers = _deaths(self._split), _readers_by_node(self._split)
        steps = tuple(self._step(each, deaths[each], entries, readers) for each in self._split.segments)
        results = tuple(map(self._result, self._split.results))
        sizes = tuple(self._reader(each) for each in size_readers(self._inputs).values())
        return GraphSteps(len(self._inputs), self._constants, sizes, steps, results, len(self._numbers))

    def _number(self, node: fx.Node) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def _step(
        self,
        segment: Segment,
        dead: Sequence[fx.Node],
        entries: Iterator[tuple[OpenEntry, Sequence[int]]],
        readers: Mapping[fx.Node, Sequence[SizeReader[fx.Node]]],
    ) -> NativeStep | TorchStep:
        step = self._native_step(segment, *next(entries)) if segment.is_native else self._torch_step(segment, readers)
        return replace(step, dead=tuple(map(self._number, dead)))

    def _native_step(self, segment: Segment, entry: OpenEntry, in_place: Sequence[int]) -> NativeStep:
        inputs = segment_inputs(segment)
        # Constants were bound when the library was opened; a number was specialized, or is a size.
        varying = [node for node in inputs.nodes if node.op != "get_attr"]
        passed = [node for node in varying if isinstance(value_of(node), torch.Tensor)]
        written = {segment.outputs[number] for number in in_place}
        made = [node for node in segment.outputs if node not in written]
        updated = [each for each in segment.updates if each[0] in written]
        return NativeStep(
            entry,
            tuple(map(self._number, passed)),
            inputs.sizes,
            tuple(map(self._number, made)),
            tuple((self._number(value), self._number(source)) for value, source in updated),
        )

    def _torch_step(self, segment: Segment, readers: Mapping[fx.Node, Sequence[SizeReader[fx.Node]]]) -> TorchStep:
        return TorchStep(
            tuple(
                _call(node, self._operand, self._number(node), tuple(map(self._reader, readers.get(node, ()))))
                for node in segment.nodes
            )
        )

    def _reader(self, reader: SizeReader[fx.Node]) -> SizeReader[int]:
        return SizeReader(reader.symbol, self._number(reader.source), reader.dimension, reader.factor, reader.offset)

    def _operand(self, node: fx.Node) -> Any:
        return Value(self._numbers[node]) if node in self._numbers else _size(node)

    def _result(self, result: object) -> Result:
        if isinstance(result, ViewChain):
            root, views = result.root, tuple(map(_view, result.views))
            return Result(self._operand(root), views, is_copied=root.op == "get_attr")
        if isinstance(result, fx.Node):
            return Result(self._operand(result), is_copied=result.op == "get_attr")
        return Result(result)


def _call(
    node: fx.Node, operand: Callable[[fx.Node], Any], output: int, sizes: tuple[SizeReader[int], ...] = ()
) -> OperatorCall:
    arguments, keywords = _exchanged((node.args, node.kwargs), operand)
    function: Callable[..., Any] = node.target  # type: ignore[assignment]
    return OperatorCall(function, arguments, keywords, output, sizes, sees_grad_mode=Fact.WORKSPACE in facts_of(node))


def _exchanged(argument: Any, operand: Callable[[fx.Node], Any]) -> Any:
    """An argument with nodes replaced by references to values and sizes."""
    if isinstance(argument, fx.Node):
        return operand(argument)
    if isinstance(argument, list):
        return [_exchanged(item, operand) for item in argument]
    if isinstance(argument, tuple):
        return tuple([_exchanged(item, operand) for item in argument])
    if isinstance(argument, dict):
        return {key: _exchanged(item, operand) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(*_exchanged((argument.start, argument.stop, argument.step), operand))
    return argument


def _size(node: fx.Node) -> int | Index:
    assert is_size(node), f"{node} has no value yet"
    size = value_of(node)
    assert isinstance(size, int | torch.SymInt)
    return size if isinstance(size, int) else to_index(size)


def _view(view: fx.Node) -> OperatorCall | Reshape:
    """One view, of value number 0."""
    if view.target in RESHAPES:
        shape: Sequence[int | torch.SymInt] = tensor_of(view).shape
        return Reshape(tuple(size if isinstance(size, int) else to_index(size) for size in shape))
    return _call(view, lambda node: Value(0) if node is view.args[0] else _size(node), 0)


def _readers_by_node(split: SplitGraph) -> dict[fx.Node, list[SizeReader[fx.Node]]]:
    readers: dict[fx.Node, list[SizeReader[fx.Node]]] = {}
    for reader in computed_sizes(split.module.graph).values():
        readers.setdefault(reader.source, []).append(reader)
    return readers


def _constants_outside_of_libraries(split: SplitGraph) -> list[fx.Node]:
    """Constants that torch or the caller reads: libraries were given theirs when they were opened."""
    run_by_torch = [node for segment in split.segments if not segment.is_native for node in segment.nodes]
    read = [each for node in run_by_torch for each in node.all_input_nodes]
    return [node for node in (*read, *_returned_nodes(split)) if node.op == "get_attr"]


def _returned_nodes(split: SplitGraph) -> list[fx.Node]:
    roots = (each.root if isinstance(each, ViewChain) else each for each in split.results)
    return [each for each in roots if isinstance(each, fx.Node)]


def _deaths(split: SplitGraph) -> dict[Segment, tuple[fx.Node, ...]]:
    """For each segment, the values that die after it; constants stay, and the last segment needs no entry."""
    kept = {*_returned_nodes(split), *(node for node in split.module.graph.nodes if node.op == "get_attr")}
    deaths: dict[Segment, tuple[fx.Node, ...]] = {}
    for segment in reversed(split.segments):
        inner = () if segment.is_native else tuple(node for node in segment.nodes if node not in segment.outputs)
        dead = [node for node in segment.inputs if node not in kept]
        kept |= set(dead)
        deaths[segment] = (*inner, *dead) if deaths else ()
    return deaths
