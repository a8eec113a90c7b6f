"""``precast.explain``: what native code is made of a function, without building or running it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse, compilers_of
from precast.autograd.uncaptured import GraphBreakWarning, names_within
from precast.backend import Compiler
from precast.errors import InputTypeError
from precast.graph.compilation import get_aot_graph_name
from precast.graph.nodes import is_state, placeholders_of, tensor_of
from precast.native.backend import BACKEND, NativeCompiler
from precast.native.graph_passes.freezing import freeze_graph, refuse_gradients
from precast.native.interpreted import interpret
from precast.native.programs import lower_segments, prepare_graph
from precast.options import as_options
from precast.report.graph_explanation import GraphExplanation, explain_graph


@dataclass(frozen=True)
class RegionExplanation:
    """A module or function of a program that runs in pieces: whether it runs in Python, and why."""

    name: str
    is_in_python: bool
    reason: str

    def __str__(self) -> str:
        told = self.reason.replace("\n", "\n    ")
        return f"  in Python  {self.name}: {told}" if self.is_in_python else f"  compiled   {self.name}"


@dataclass(frozen=True)
class Explanation:
    """What each graph of a function becomes: kernels, library calls, calls back into torch.

    ``regions`` are the parts of a function that is not one graph.
    """

    graphs: tuple[GraphExplanation, ...]
    regions: tuple[RegionExplanation, ...] = ()

    def __str__(self) -> str:
        parts = ["\n".join(["runs in pieces:", *map(str, self.regions)])] if self.regions else []
        return "\n\n".join([*parts, *map(str, self.graphs)])

    def as_data(self) -> list[dict[str, Any]]:
        """The same as plain data, for JSON; what runs in Python comes first."""
        regions = [
            {"region": each.name, "runs_in_python": each.is_in_python, "reason": each.reason} for each in self.regions
        ]
        return [*regions, *(graph.as_data() for graph in self.graphs)]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that torch runs, of all graphs, each once."""
        names = [each.operator for graph in self.graphs for each in (*graph.fallbacks, *graph.left_to_torch)]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class _Explaining(Compiler):
    """Stands for the native compiler: it explains graphs, and returns something slow that runs them."""

    compiler: NativeCompiler
    graphs: list[GraphExplanation]

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., object]:
        target = self.compiler.target_of(graph_module)
        split = prepare_graph(self._frozen(graph_module), target, as_options(self.compiler.options))
        entries = lower_segments(split, target)
        self.graphs.append(explain_graph(get_aot_graph_name(), split, entries))
        return interpret(graph_module, example_inputs)

    def _frozen(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph over constants, where the options want that; what they are, without their numbers, will do."""
        if not self.compiler.holds_state():
            return graph_module
        if not self.compiler.is_for_inference:
            refuse_gradients()
        state = [node for node in placeholders_of(graph_module.graph) if is_state(node)]
        return freeze_graph(graph_module, {node.name: tensor_of(node) for node in state})


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``precast.compile(fn)`` makes of a call with these arguments; printing it tells people.

    A compiled function or module is explained with the options that it was compiled with.

    Nothing is built and ``fn`` is not run on the arguments' values, unless it cannot be captured as a whole: then a
    copy of it runs once, and its parts are listed, with the lines that are in the way. Graphs for gradients are
    explained too where the call asks for them.

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
    graphs: list[GraphExplanation] = []
    compilers = _native_compilers(fn)
    compilers = replace(
        compilers,
        forward=_explaining(compilers.forward, graphs),
        backward=_explaining(compilers.backward, graphs),
        inference=_explaining(compilers.inference, graphs),
    )
    original = _unwrapped(fn)
    if AotCallable(original, compilers, logs=False, graph_breaks=True).compile_for(*args, **kwargs):
        return Explanation(tuple(graphs))
    graphs.clear()
    regions = _run_in_pieces(original, args, kwargs, compilers)
    return Explanation(tuple(graphs), tuple(regions))


def _run_in_pieces(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], compilers: CompilersInUse
) -> list[RegionExplanation]:
    """Run a copy of the function, which is how one finds out what it calls; its parts, the outermost first."""
    copied = copy.deepcopy(function)
    call = AotCallable(copied, compilers, logs=False, graph_breaks=True)
    own_args, own_kwargs = pytree.tree_map_only(torch.Tensor, _copied, (args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphBreakWarning)
        call(*own_args, **own_kwargs)
    name_within = names_within(copied)
    return [RegionExplanation(name_within(each.function), each.is_in_python, each.reason) for each in call.regions()]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _explaining(compiler: object, graphs: list[GraphExplanation]) -> _Explaining:
    assert isinstance(compiler, NativeCompiler), "the native backend is ours"
    return _Explaining(compiler, graphs)


def _native_compilers(fn: Callable[..., Any]) -> CompilersInUse:
    """What a function was compiled with, if natively; else what it would be compiled with."""
    found = compilers_of(fn)
    is_native = found is not None and all(
        isinstance(each, NativeCompiler) for each in (found.forward, found.backward, found.inference)
    )
    return found if found is not None and is_native else CompilersInUse.of_backend(BACKEND, as_options(None))


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled module explains as the module it was made of."""
    original = getattr(fn, "original_module", None)
    return original if isinstance(fn, torch.nn.Module) and isinstance(original, torch.nn.Module) else fn
