"""``precast.explain``: what native code a function becomes, without building or running it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse, dynamic_of
from precast.autograd.uncaptured import GraphBreakWarning, names_within
from precast.errors import InputTypeError
from precast.report.graph_explanation import GraphExplanation, explain_graph
from precast.report.lowered import LoweredGraph, lowering_compilers, native_compilers, unwrapped


@dataclass(frozen=True)
class RegionExplanation:
    """A module or function of a program with graph breaks: whether it runs in Python, and why."""

    name: str
    is_in_python: bool
    reason: str

    def __str__(self) -> str:
        reason = self.reason.replace("\n", "\n    ")
        return f"  in Python  {self.name}: {reason}" if self.is_in_python else f"  compiled   {self.name}"


@dataclass(frozen=True)
class Explanation:
    """What each graph of a function becomes: kernels, library calls, calls back into torch.

    ``regions`` are the parts of a function with graph breaks.
    """

    graphs: tuple[GraphExplanation, ...]
    regions: tuple[RegionExplanation, ...] = ()

    def __str__(self) -> str:
        parts = ["\n".join(["runs in pieces:", *map(str, self.regions)])] if self.regions else []
        return "\n\n".join([*parts, *map(str, self.graphs)])

    def as_data(self) -> list[dict[str, Any]]:
        """The same as plain data, for JSON; regions that run in Python come first."""
        regions = [
            {"region": each.name, "runs_in_python": each.is_in_python, "reason": each.reason} for each in self.regions
        ]
        return [*regions, *(graph.as_data() for graph in self.graphs)]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The eager fallbacks of all graphs, each operator once."""
        names = [each.operator for graph in self.graphs for each in (*graph.fallbacks, *graph.left_to_torch)]
        return tuple(dict.fromkeys(names))


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Explain what ``precast.compile(fn)`` makes of a call with these arguments: kernels, library calls, fallbacks.

    The result prints as a summary. A compiled function or module is explained with the options it was compiled with.

    Nothing is built, and ``fn`` does not run on the values of the arguments, unless it cannot be captured as one graph:
    then a copy of it runs once, and its parts are listed with the lines that break the graph. If the call needs
    gradients, the backward graph is explained as well.

    >>> print(explain(lambda x: x.exp() + 1, torch.ones(2)))
    inference graph: 1 kernel, 0 library calls, 0 calls back into torch; moves 16 bytes, 0 bytes of scratch memory
      kernel   add   exp, add   16 bytes
    """
    if not callable(fn):
        raise InputTypeError(
            f"precast.explain got an object of type {type(fn).__name__}",
            why="it explains what a function or module becomes",
            fix="pass the function, then the arguments of one call: precast.explain(model, x)",
        )
    graphs: list[LoweredGraph] = []
    compilers, original = lowering_compilers(native_compilers(fn), graphs), unwrapped(fn)
    regions: Sequence[RegionExplanation] = ()
    call = AotCallable(original, compilers, dynamic=dynamic_of(fn), logs=False, graph_breaks=True)
    if not call.compile_for(*args, **kwargs):
        graphs.clear()
        regions = _run_in_pieces(original, args, kwargs, compilers)
    explained = [explain_graph(each.name, each.split, each.entries) for each in graphs]
    return Explanation(tuple(explained), tuple(regions))


def _run_in_pieces(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], compilers: CompilersInUse
) -> list[RegionExplanation]:
    """Run a copy of the function, which is how one finds out what it calls; its parts, the outermost first."""
    copy_of_function = copy.deepcopy(function)
    call = AotCallable(copy_of_function, compilers, logs=False, graph_breaks=True)
    own_args, own_kwargs = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphBreakWarning)
        call(*own_args, **own_kwargs)
    name_within = names_within(copy_of_function)
    return [RegionExplanation(name_within(each.function), each.is_in_python, each.reason) for each in call.regions()]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, which requires grad if the original does."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
