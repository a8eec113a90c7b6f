"""Compiled graphs whose parameters are constants, taken from the first call.

Before: a graph over ``weight``, ``bias`` and ``x``; the first call passes the first two
After:  a compiled graph over ``x``, opened over constants that were computed from ``weight`` and ``bias``

That computation is recorded, so that another process, with parameters of its own, can repeat it without compiling
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from precast.native.call import CompiledGraph, GraphSteps, OperatorCall, Result, TorchStep, Value
from precast.native.stored_graphs import StoredGraph, open_entries, read_steps, serialized_steps
from precast.native.targets import Target
from precast.options import Options
from precast.trace.session import ProcessLock

State = Mapping[str, torch.Tensor]
"""Parameters and buffers, by the names of the graph's inputs."""


@dataclass(frozen=True)
class FrozenCall:
    """A compiled graph over the inputs that are not state, and how its constants are computed, if that is known.

    The results of ``constants`` are the weights of the code, in the order of their names, then the constants of the
    graph, in the order of their numbers.
    """

    graph: CompiledGraph
    weights: Sequence[str] = ()
    constants: GraphSteps | None = None


class FrozenGraph:
    """Takes all inputs of a graph; the first call's values of those that ``state`` names become constants.

    ``make`` compiles the rest once these are known.
    """

    _boxed_call = True

    def __init__(self, state: Sequence[str | None], make: Callable[[State], FrozenCall]):
        self._names = state
        self._state = {place: name for place, name in enumerate(state) if name is not None}
        self._passed = [place for place, name in enumerate(state) if name is None]
        self._make: Callable[[State], FrozenCall] | None = make
        self._made: FrozenCall | None = None
        self._lock = ProcessLock()
        self._waiting: list[Callable[[], None]] = []

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        made = self._made or self._first(inputs)
        passed = [inputs[place] for place in self._passed]
        inputs.clear()
        return made.graph(passed)

    def _first(self, inputs: Sequence[Any]) -> FrozenCall:
        with self._lock:
            if self._made is None:
                assert self._make is not None, "make is kept until it has run"
                self._made = self._make({name: inputs[place] for place, name in self._state.items()})
                self._make = None
            made, waiting, self._waiting = self._made, self._waiting, []
        for then in waiting:
            then()
        return made

    def when_made(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the first call has compiled the graph."""
        self._waiting.append(then)

    @property
    def stored(self) -> StoredGraph | None:
        """Everything needed to restore it; None before the first call, and where it cannot be serialized."""
        made = self._made
        if made is None or made.constants is None or (code := made.graph.stored) is None:
            return None
        steps, constants = serialized_steps(replace(made.graph.graph, constants={})), serialized_steps(made.constants)
        if steps is None or constants is None:
            return None
        numbers = sorted(made.graph.graph.constants)
        frozen = {"state": self._names, "weights": made.weights, "numbers": numbers, "constants": constants}
        return replace(code, steps=steps, weights={}, frozen=frozen)


def restored_graph(stored: StoredGraph, target: Target, options: Options) -> FrozenGraph:
    """The graph over the code that was stored; a ``BuildError`` if that has been evicted."""
    assert stored.frozen is not None, "the graph is one with constants"
    assert stored.steps is not None, "it was stored with its steps"
    steps, frozen = stored.steps, stored.frozen
    constants = read_steps(frozen["constants"], ())
    # Found before anything depends on it; the constants come with the first call.
    open_code = open_entries(stored, target, options)

    def make(state: State) -> FrozenCall:
        values = CompiledGraph(constants)([*state.values()])
        names, numbers = frozen["weights"], frozen["numbers"]
        graph = read_steps(steps, open_code(dict(zip(names, values, strict=False))))
        rest = dict(zip(numbers, values[len(names) :], strict=True))
        return FrozenCall(CompiledGraph(replace(graph, constants=rest)))

    return FrozenGraph(frozen["state"], make)


class ConstantsRecorder(TorchDispatchMode):
    """While active, records what is computed from ``state``; ``steps`` returns steps that compute some of it again."""

    def __init__(self, state: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs, self._count = len(state), 0
        self._numbers = WeakIdKeyDictionary()
        self._constants: dict[int, torch.Tensor] = {}
        self._calls: list[OperatorCall] = []
        self._views: set[int] = set()
        self._is_complete = True
        for tensor in state:
            self._new_number(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if types:
            # Sizes of traced tensors go through here, too.
            return result
        arguments, keywords = pytree.tree_map_only(torch.Tensor, self._operand, (args, kwargs))
        written = any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)
        is_view = not written and any(each.alias_info is not None for each in func._schema.returns)
        if isinstance(result, torch.Tensor):
            number = self._number(result)
            self._calls.append(OperatorCall(func, arguments, keywords, number))
            # A write through a view of something else, or into the state, is not tracked.
            self._is_complete &= not (written and (number in self._views or number < self._inputs))
            numbers = [number]
        elif isinstance(result, tuple | list) and not written:
            numbers = self._several(OperatorCall(func, arguments, keywords, self._count), result)
        else:
            self._is_complete, numbers = False, []
        if is_view:
            self._views.update(numbers)
        return result

    def _several(self, call: OperatorCall, results: Sequence[Any]) -> list[int]:
        self._count += 1
        self._calls.append(call)
        tensors = [(place, self._number(each)) for place, each in enumerate(results) if isinstance(each, torch.Tensor)]
        self._calls += [OperatorCall(getitem, (Value(call.output), place), {}, number) for place, number in tensors]
        return [number for _, number in tensors]

    def _new_number(self, tensor: torch.Tensor) -> int:
        number = self._numbers[tensor] = self._count
        self._count += 1
        return number

    def _number(self, tensor: torch.Tensor) -> int:
        known: int | None = self._numbers.get(tensor)
        return self._new_number(tensor) if known is None else known

    def _operand(self, tensor: torch.Tensor) -> Value:
        if tensor not in self._numbers:
            self._constants[self._new_number(tensor)] = tensor
        return Value(self._numbers[tensor])

    def steps(self, wanted: Sequence[torch.Tensor]) -> GraphSteps | None:
        """Steps that compute these tensors from the state; None where that is not known."""
        if not self._is_complete:
            return None
        results = [self._operand(tensor) for tensor in wanted]
        needed = {each.number for each in results}
        kept: list[TorchStep] = []
        for call in reversed(self._calls):
            if call.output in needed:
                read = dict.fromkeys(_numbers_in((call.arguments, call.keywords)))
                dead = tuple(number for number in read if number not in needed and number >= self._inputs)
                needed.update(read)
                kept.append(TorchStep((call,), dead))
        constants = {number: tensor for number, tensor in self._constants.items() if number in needed}
        return GraphSteps(self._inputs, constants, (), tuple(reversed(kept)), tuple(map(Result, results)), self._count)


def _numbers_in(arguments: Any) -> Iterator[int]:
    return (leaf.number for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Value))
