"""A compiled graph: runs its steps in order over one list of numbered values.

Inputs come first, then constants, then the steps' results. Nothing here refers to the fx graph that it was made from
(``native.steps``), so that a compiled graph can be stored and restored (``native.stored_graphs``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from precast.native.loops.index import Index, evaluate
from precast.native.targets import OpenEntry, Target
from precast.runtime.tensors import as_tensor

if TYPE_CHECKING:
    from precast.native.stored_graphs import StoredGraph

Values = list[Any]
Sizes = dict[str, int]
Source = TypeVar("Source")


@dataclass(frozen=True)
class Value:
    """In arguments and results: a reference to the value of this number. A size is an ``Index`` there."""

    number: int


@dataclass(frozen=True)
class SizeReader(Generic[Source]):
    """Reads a dynamic size from a value: ``(number - offset) / factor``.

    The number is a dimension of a tensor, or the value itself where there is no dimension. The source is a node while a
    graph is compiled, and the number of a value when it is called.
    """

    symbol: str
    source: Source
    dimension: int | None
    factor: int
    offset: int

    def read(self, value: object) -> int:
        number = value if self.dimension is None else value.shape[self.dimension]  # type: ignore[attr-defined]
        assert isinstance(number, int), f"the size {self.symbol} is a {type(number).__name__}"
        return (number - self.offset) // self.factor


@dataclass(frozen=True)
class NativeStep:
    """One entry of the code. An entry without steps and results has no code.

    `updated` are results that it writes into an input, each with that input; `dead` are values not read afterwards.
    """

    entry: OpenEntry
    inputs: tuple[int, ...]
    sizes: tuple[str, ...]
    outputs: tuple[int, ...]
    updated: tuple[tuple[int, int], ...] = ()
    dead: tuple[int, ...] = ()

    def run(self, values: Values, sizes: Sizes) -> None:
        tensors = [values[number] for number in self.inputs]
        tensors += [as_tensor(sizes[name], name=name) for name in self.sizes]
        for number, result in zip(self.outputs, self.entry.run(tensors, like_torch=True), strict=True):
            values[number] = result
        for number, source in self.updated:
            values[number] = values[source]


@dataclass(frozen=True)
class OperatorCall:
    """A call that torch runs, and the sizes that are read from its result."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    output: int
    sizes: tuple[SizeReader[int], ...] = ()
    sees_grad_mode: bool = False

    def run(self, values: Values, sizes: Sizes) -> Any:
        """Call without recording gradients: the graph has its own backward."""
        arguments, keywords = _filled(self.arguments, values, sizes), _filled(self.keywords, values, sizes)
        # Operators that depend on grad mode see the caller's, which ensures that no gradient is needed here.
        with torch.set_grad_enabled(self.sees_grad_mode and torch.is_grad_enabled()):
            return self.function(*arguments, **keywords)


@dataclass(frozen=True)
class TorchStep:
    """Operators that torch runs one by one."""

    calls: tuple[OperatorCall, ...]
    dead: tuple[int, ...] = ()

    def run(self, values: Values, sizes: Sizes) -> None:
        for call in self.calls:
            value = values[call.output] = call.run(values, sizes)
            for reader in call.sizes:
                sizes[reader.symbol] = reader.read(value)


@dataclass(frozen=True)
class Reshape:
    """The traced view of an input, applied to an input whose strides may differ."""

    shape: tuple[int | Index, ...]

    def run(self, values: Values, sizes: Sizes) -> Any:
        return values[0].reshape(_filled(self.shape, values, sizes))


@dataclass(frozen=True)
class Result:
    """A result of a graph: a value or a number, or a chain of views of a value.

    A constant that eager would create at each call `is_copied`: callers may write into it.
    """

    value: Any
    views: tuple[OperatorCall | Reshape, ...] = ()
    is_copied: bool = False

    def of(self, values: Values, sizes: Sizes) -> Any:
        value = _filled(self.value, values, sizes)
        if self.is_copied and isinstance(value, torch.Tensor):
            value = value.clone()
        for view in self.views:
            value = view.run([value], sizes)
        return value


@dataclass(frozen=True)
class GraphSteps:
    """Everything needed to run a graph: the number of inputs, constants by number, where sizes are read, the steps,
    and the results.
    """

    inputs: int
    constants: Mapping[int, Any]
    sizes: tuple[SizeReader[int], ...]
    steps: tuple[NativeStep | TorchStep, ...]
    results: tuple[Result, ...]
    values: int
    """How many values there are."""


class CompiledGraph:
    """Takes one list of inputs, which it empties, and returns a list of results."""

    _boxed_call = True

    def __init__(self, graph: GraphSteps, stored: StoredGraph | None = None, target: Target | None = None):
        """`stored` is what the graph was restored from; the `target` may have a faster way to call it repeatedly."""
        self.graph, self.steps, self._stored = graph, graph.steps, stored
        self._rest = [graph.constants.get(number) for number in range(graph.inputs, graph.values)]
        numbers = [each.value.number for each in graph.results if _is_plain(each)]
        self._plain_results = numbers if len(numbers) == len(graph.results) else None
        self._repeated = target.repeated(self) if target is not None else None

    @property
    def stored(self) -> StoredGraph | None:
        """Everything needed to restore it in another process; None where that is impossible."""
        return self._stored

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.run(inputs) if self._repeated is None else self._repeated(inputs)

    def run(self, inputs: list[Any]) -> list[Any]:
        """One call, step by step."""
        values, sizes = self.begin(inputs)
        self.run_steps(self.steps, values, sizes)
        return self.end(values, sizes)

    def begin(self, inputs: list[Any]) -> tuple[Values, Sizes]:
        """The values and sizes known before any step; empties the list of inputs."""
        assert len(inputs) == self.graph.inputs, f"the graph has {self.graph.inputs} inputs"
        values: Values = [*inputs, *self._rest]
        inputs.clear()
        sizes: Sizes = {}
        for reader in self.graph.sizes:
            sizes[reader.symbol] = reader.read(values[reader.source])
        return values, sizes

    def run_steps(
        self, steps: Sequence[NativeStep | TorchStep], values: Values, sizes: Sizes, *, keep: Collection[int] = ()
    ) -> None:
        """Run steps, freeing dead values except those to be kept."""
        for step in steps:
            step.run(values, sizes)
            for number in step.dead:
                if number not in keep:
                    values[number] = None

    def end(self, values: Values, sizes: Sizes) -> list[Any]:
        """The results of the graph, once its steps have run."""
        if self._plain_results is not None:
            return [values[number] for number in self._plain_results]
        return [result.of(values, sizes) for result in self.graph.results]


def _is_plain(result: Result) -> bool:
    return type(result.value) is Value and not result.views and not result.is_copied


def _filled(argument: Any, values: Values, sizes: Mapping[str, int]) -> Any:
    """An argument with references replaced by values and numbers."""
    if isinstance(argument, Value):
        return values[argument.number]
    if isinstance(argument, Index):
        return evaluate(argument, lambda atom: sizes[atom.text])
    if isinstance(argument, list):
        return [_filled(item, values, sizes) for item in argument]
    if isinstance(argument, tuple):
        return tuple([_filled(item, values, sizes) for item in argument])
    if isinstance(argument, dict):
        return {key: _filled(item, values, sizes) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(*_filled((argument.start, argument.stop, argument.step), values, sizes))
    return argument
