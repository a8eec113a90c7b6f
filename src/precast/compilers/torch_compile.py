"""``torch.compile(model, backend="precast")``: what torch's front end calls with each graph that it makes.

Torch finds it by the entry point ``torch_dynamo_backends``; nothing of torch's front end is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse
from precast.compilers.native import BACKEND
from precast.options import as_options
from precast.partition import min_cut_rematerialization_partition

Place = tuple[int, int]
"""A dimension of one of the inputs: the input's position, then the dimension."""


def compile_graph(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one graph of torch's front end natively, its backward too, when it is first called."""
    compiler = BACKEND.fw_compiler.with_options(as_options(options))  # type: ignore[attr-defined]
    compilers = CompilersInUse.of(
        compiler,
        None,
        None,
        partition=min_cut_rematerialization_partition,
        decompositions=BACKEND.decompositions,
    )
    sizes = size_inputs(example_inputs)
    compiled = AotCallable(WithoutSizes(graph_module, sizes), compilers, dynamic=has_dynamic_sizes(example_inputs))
    if not sizes:
        return compiled

    def call(*inputs: Any) -> Any:
        return compiled(*(value for position, value in enumerate(inputs) if position not in sizes))

    return call


def has_dynamic_sizes(examples: Sequence[Any]) -> bool:
    return any(
        isinstance(size, torch.SymInt) for example in examples if isinstance(example, torch.Tensor)
        for size in example.shape
    )  # fmt: skip


def size_inputs(examples: Sequence[Any]) -> dict[int, Place]:
    """Inputs that are sizes of other inputs: where each of them can be read."""
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


class WithoutSizes(torch.nn.Module):
    """A graph whose inputs that are sizes are read from its other inputs: one program then serves all sizes."""

    def __init__(self, graph_module: fx.GraphModule, sizes: dict[int, Place]):
        super().__init__()
        self.graph_module = graph_module
        self.sizes = sizes

    def forward(self, *inputs: Any) -> Any:
        remaining = list(inputs)
        for position in sorted(self.sizes):
            remaining.insert(position, None)
        for position, (tensor, dimension) in self.sizes.items():
            remaining[position] = remaining[tensor].shape[dimension]
        return self.graph_module(*remaining)
