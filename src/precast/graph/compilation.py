"""Numbers for compilations and names for graphs, so that logs, dumps and errors can be told apart.

A name reads ``model__3_forward_0``: the model's name, the compilation's number, the graph's kind, and its order (0 for
the graph itself, 1 for the graph of its gradient's gradient, and so on).
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_numbers = itertools.count()
_model_name = "model"
_KINDS = ("forward", "backward", "inference", "joint")


@dataclass(frozen=True)
class Compilation:
    """One run of the compilers: the model's name, its number, and the order of differentiation."""

    model: str
    number: int
    order: int = 0

    def graph_name(self, kind: str) -> str:
        return f"{self.model}__{self.number}_{kind}_{self.order}"


class _Current(threading.local):
    compilation: Compilation | None = None
    graph: str | None = None


_current = _Current()


def kind_of_graph(name: str) -> str:
    """The kind of the graph with this name, in one word; the name itself if it is not one of ours.

    >>> kind_of_graph("model__3_backward_0")
    'backward'
    """
    return next((kind for kind in _KINDS if f"_{kind}_" in name), name)


def set_model_name(name: str) -> None:
    """Set the prefix of the names of graphs that are compiled from now on."""
    global _model_name
    _model_name = name


def get_aot_graph_name() -> str:
    """Return the name of the graph being compiled on this thread, or else of the next joint graph."""
    if _current.graph is not None:
        return _current.graph
    compilation = _current.compilation or Compilation(_model_name, 0)
    return compilation.graph_name("joint")


def get_graph_being_compiled() -> str:
    """Alias of ``get_aot_graph_name``."""
    return get_aot_graph_name()


@contextmanager
def new_compilation(order: int = 0) -> Iterator[Compilation]:
    """Number one compilation; everything compiled inside belongs to it."""
    outer = _current.compilation, _current.graph
    _current.compilation = compilation = Compilation(_model_name, next(_numbers), order)
    _current.graph = None
    try:
        yield compilation
    finally:
        _current.compilation, _current.graph = outer


def is_compiler_running() -> bool:
    """Whether a graph is being compiled on this thread."""
    return _current.graph is not None


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """While active, ``get_aot_graph_name()`` returns ``name`` on this thread."""
    outer = _current.graph
    _current.graph = name
    try:
        yield
    finally:
        _current.graph = outer
