"""``precast.explain``: what native code is made of a function, without building or running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.graph_names import get_aot_graph_name
from precast.compilers.interpreted import interpret
from precast.compilers.native import BACKEND, lower_segments, prepare_graph
from precast.errors import InputTypeError
from precast.options import as_options
from precast.partition import min_cut_rematerialization_partition
from precast.report.graph_explanation import GraphExplanation, explain_graph


@dataclass(frozen=True)
class Explanation:
    """What each graph of a function becomes: kernels, library calls, calls back into torch."""

    graphs: tuple[GraphExplanation, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.graphs))

    def as_data(self) -> list[dict[str, Any]]:
        """The same as plain data, for JSON."""
        return [graph.as_data() for graph in self.graphs]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that torch runs, of all graphs, each once."""
        names = [each.operator for graph in self.graphs for each in (*graph.fallbacks, *graph.left_to_torch)]
        return tuple(dict.fromkeys(names))


@dataclass
class _Explaining:
    """A compiler that explains graphs, and gives something slow that runs them."""

    graphs: list[GraphExplanation] = field(default_factory=list)

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., object]:
        split = prepare_graph(graph_module, as_options(None))
        self.graphs.append(explain_graph(get_aot_graph_name(), split, lower_segments(split)))
        return interpret(graph_module, example_inputs)


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``precast.compile(fn)`` makes of a call with these arguments; printing it tells people.

    Nothing is built and ``fn`` is not run on the arguments' values. Graphs for gradients are explained too where the
    call asks for them.

    >>> print(explain(lambda x: x.exp() + 1, torch.ones(2)))
    inference graph: 1 kernel, 0 library calls, 0 calls back into torch; moves 16 bytes, 0 bytes of scratch memory
      kernel   add   exp, add   16 bytes
    """
    if not callable(fn):
        raise InputTypeError(
            f"precast.explain got a {type(fn).__name__}",
            why="it explains what a function or module becomes",
            fix="pass the function, then the arguments of one call: precast.explain(model, x)",
        )
    compiler = _Explaining()
    compilers = CompilersInUse.of(
        compiler,
        None,
        None,
        partition=min_cut_rematerialization_partition,
        decompositions=BACKEND.decompositions,
    )
    AotCallable(_unwrapped(fn), compilers, logs=False).compile_for(*args, **kwargs)
    return Explanation(tuple(compiler.graphs))


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled module explains as the module it was made of."""
    original = getattr(fn, "original_module", None)
    return original if isinstance(fn, torch.nn.Module) and isinstance(original, torch.nn.Module) else fn
