"""Every compilation has a number and every graph a name, so that logs, dumps and errors can be told apart.

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
    """One run of the compilers: for which model, as which number, at which order of differentiation."""

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
    """What a graph with this name is for, in a word; the name itself where that is none of ours.

    >>> kind_of_graph("model__3_backward_0")
    'backward'
    """
    return next((kind for kind in _KINDS if f"_{kind}_" in name), name)


def set_model_name(name: str) -> None:
    """Choose what names of graphs compiled from now on start with."""
    global _model_name
    _model_name = name


def get_aot_graph_name() -> str:
    """The name of the graph being compiled on this thread; outside of a compilation, that of the next joint graph."""
    if _current.graph is not None:
        return _current.graph
    compilation = _current.compilation or Compilation(_model_name, 0)
    return compilation.graph_name("joint")


def get_graph_being_compiled() -> str:
    """Another name of ``get_aot_graph_name``."""
    return get_aot_graph_name()


@contextmanager
def new_compilation(order: int = 0) -> Iterator[Compilation]:
    """Count one compilation; what is compiled inside belongs to it."""
    outer = _current.compilation, _current.graph
    _current.compilation = compilation = Compilation(_model_name, next(_numbers), order)
    _current.graph = None
    try:
        yield compilation
    finally:
        _current.compilation, _current.graph = outer


def is_compiler_running() -> bool:
    """Whether a graph is with its compiler on this thread."""
    return _current.graph is not None


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """While active, ``get_aot_graph_name()`` answers ``name`` on this thread."""
    outer = _current.graph
    _current.graph = name
    try:
        yield
    finally:
        _current.graph = outer
