"""A compiled graph that stands alone: made of data, and run without the fx graph that it was compiled from.

Before: the data that ``native_graph_data`` writes
After:  ``StandaloneGraph``: steps over numbered values; inputs come first, then results of steps
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.graph.constants import TORCH_CONSTANTS
from precast.native.targets import OpenEntry
from precast.ops.own_operators import operator_named


def graph_of(content: Mapping[str, Any], entries: Sequence[OpenEntry]) -> StandaloneGraph:
    """The graph again, over the entries of its code."""
    remaining = iter(entries)
    steps = tuple(
        _Run(next(remaining), *map(tuple, (step["inputs"], step["outputs"], step["updated"], step["dead"])))
        if "inputs" in step
        else _Call(tuple(map(_call, step["calls"])), tuple(step["dead"]))
        for step in content["steps"]
    )
    return StandaloneGraph(steps, tuple(map(_read_result, content["results"])))


@dataclass(frozen=True)
class _Run:
    """One entry of the code."""

    entry: OpenEntry
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updated: tuple[tuple[int, int], ...]
    dead: tuple[int, ...]

    def run(self, values: dict[int, Any]) -> None:
        results = self.entry.run([values[number] for number in self.inputs], like_torch=True)
        values.update(zip(self.outputs, results, strict=True))
        for result, source in self.updated:
            values[result] = values[source]


@dataclass(frozen=True)
class _OperatorCall:
    """One operator, whose arguments may hold numbers of values."""

    function: Callable[..., Any]
    arguments: Any
    keywords: dict[str, Any]
    output: int

    def __call__(self, values: dict[int, Any]) -> Any:
        with torch.no_grad():
            return self.function(*_filled(self.arguments, values), **_filled(self.keywords, values))


@dataclass(frozen=True)
class _Call:
    """Operators that torch runs one by one."""

    calls: tuple[_OperatorCall, ...]
    dead: tuple[int, ...]

    def run(self, values: dict[int, Any]) -> None:
        for call in self.calls:
            values[call.output] = call(values)


class StandaloneGraph:
    """Takes one list of inputs, which it empties, and gives the list of the graph's results."""

    _boxed_call = True

    def __init__(self, steps: Sequence[_Run | _Call], results: Sequence[Callable[[dict[int, Any]], Any]]):
        self.steps = steps
        self.results = results

    def __call__(self, inputs: list[Any]) -> list[Any]:
        values = dict(enumerate(inputs))
        inputs.clear()
        for step in self.steps:
            step.run(values)
            for number in step.dead:
                del values[number]
        return [result(values) for result in self.results]


def _call(content: dict[str, Any]) -> _OperatorCall:
    return _OperatorCall(
        _function(content["operator"]),
        _read(content["arguments"]),
        _read(content["keywords"]),
        content["output"],
    )


def _function(name: str) -> Callable[..., Any]:
    return operator.getitem if name == "getitem" else operator_named(name)


@dataclass(frozen=True)
class _Value:
    number: int


def _read(content: Any) -> Any:
    return TORCH_CONSTANTS.read(content, lambda number: _Value(int(number)))


def _filled(arguments: Any, values: dict[int, Any]) -> Any:
    if isinstance(arguments, _Value):
        return values[arguments.number]
    if isinstance(arguments, list | tuple):
        return [_filled(item, values) for item in arguments]
    if isinstance(arguments, dict):
        return {key: _filled(item, values) for key, item in arguments.items()}
    return arguments


def _read_result(content: dict[str, Any]) -> Callable[[dict[int, Any]], Any]:
    match content:
        case {"value": number}:
            return operator.itemgetter(number)
        case {"root": root, "views": views}:
            return _ViewResult(root, tuple(map(_view, views)))
    constant = _read(content["constant"])
    return lambda values: constant


@dataclass(frozen=True)
class _ViewResult:
    """A result that is a view of a value."""

    root: int
    views: tuple[Callable[[Any], Any], ...]

    def __call__(self, values: dict[int, Any]) -> Any:
        value = values[self.root]
        for view in self.views:
            value = view(value)
        return value


def _view(content: dict[str, Any]) -> Callable[[Any], Any]:
    if "shape" in content:
        shape = content["shape"]
        # An input may lie otherwise in memory than the traced one did.
        return lambda value: value.reshape(shape)
    call = _call(content)
    return lambda value: call({0: value})
