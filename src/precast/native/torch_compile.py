"""``torch.compile(model, backend="precast")``: the function that torch's front end calls with each graph.

Torch finds it by the entry point ``torch_dynamo_backends``; nothing of torch's front end is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast._torch_compat import is_module_state
from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse
from precast.native.backend import BACKEND
from precast.options import as_options

Place = tuple[int, int]
"""A dimension of one of the inputs: the input's position, then the dimension."""


@dataclass(frozen=True)
class InputPlaces:
    """The positions of a graph's inputs: those that are parameters and buffers, all others, and those that are sizes
    of other inputs.
    """

    state: tuple[int, ...]
    passed: tuple[int, ...]
    sizes: Mapping[int, Place]

    @classmethod
    def of(cls, examples: Sequence[Any]) -> InputPlaces:
        sizes = size_inputs(examples)
        state = tuple(position for position, example in enumerate(examples) if is_module_state(example))
        passed = set(range(len(examples))) - sizes.keys() - set(state)
        return cls(state, tuple(sorted(passed)), sizes)


def compile_graph(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one graph of torch's front end as ``precast.compile`` does; its backward at the first call of it."""
    chosen = as_options(options)
    compilers = CompilersInUse.of_backend(BACKEND, chosen)
    places, dynamic = InputPlaces.of(example_inputs), has_dynamic_sizes(example_inputs)
    function = StateFirst(graph_module, places)
    if chosen.freeze and places.state:
        return FrozenCalls(function, lambda module: AotCallable(module, compilers, dynamic=dynamic))
    compiled = AotCallable(function, compilers, dynamic=dynamic, leading_state=len(places.state))
    order = (*places.state, *places.passed)

    def call(*inputs: Any) -> Any:
        return compiled(*(inputs[position] for position in order))

    return call


def has_dynamic_sizes(examples: Sequence[Any]) -> bool:
    return any(
        isinstance(size, torch.SymInt) for example in examples if isinstance(example, torch.Tensor)
        for size in example.shape
    )  # fmt: skip


def size_inputs(examples: Sequence[Any]) -> dict[int, Place]:
    """Inputs that are sizes of other inputs: input position → where the size can be read."""
    places = {
        str(size): (position, dimension)
        for position, example in reversed(list(enumerate(examples)))
        if isinstance(example, torch.Tensor)
        for dimension, size in enumerate(example.shape)
    }
    return {
        position: places[str(example)]
        for position, example in enumerate(examples)
        if isinstance(example, torch.SymInt) and str(example) in places
    }


class StateFirst(torch.nn.Module):
    """A graph over its state, then the rest; sizes are read from other inputs, so that one program serves all sizes."""

    def __init__(self, graph_module: fx.GraphModule, places: InputPlaces):
        super().__init__()
        self.graph_module = graph_module
        self.places = places

    def forward(self, *inputs: Any) -> Any:
        places = self.places
        order = (*places.state, *places.passed)
        values = dict(zip(order, inputs, strict=True))
        for position, (tensor, dimension) in places.sizes.items():
            values[position] = values[tensor].shape[dimension]
        return self.graph_module(*(values[position] for position in sorted(values)))


class FrozenCalls:
    """Compiles once for each set of parameters and buffers, which are constants of the compiled graph.

    Torch's front end runs one graph for all modules of a class: the tensors passed tell which module it is.
    """

    def __init__(self, function: StateFirst, compile_module: Callable[[torch.nn.Module], Callable[..., Any]]):
        self._function = function
        self._compile_module = compile_module
        # The compiled graph keeps its tensors alive, so that no other tensor can reuse an address that is a key here.
        self._compiled: dict[tuple[int, ...], Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        places = self._function.places
        state = [inputs[position] for position in places.state]
        key = tuple(map(id, state))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile_module(WithState(self._function, state))
            compiled = self._compiled.setdefault(key, compiled)
        return compiled(*(inputs[position] for position in places.passed))


class WithState(torch.nn.Module):
    """A graph whose state is its own parameters and buffers."""

    def __init__(self, function: StateFirst, state: Sequence[torch.Tensor]):
        super().__init__()
        self.function = function
        self.names = [f"state_{number}" for number in range(len(state))]
        for name, tensor in zip(self.names, state, strict=True):
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*(getattr(self, name) for name in self.names), *inputs)
