"""The boxed calling convention: the inputs are passed as one list, which the callee may empty to free them early."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from precast.backend import CompiledFunction, CompilerFunction
from precast.errors import InputTypeError

BoxedCall = Callable[[list[Any]], Sequence[Any]]


def make_boxed_func(f: CompiledFunction) -> CompiledFunction:
    """Wrap a function of positional inputs so that it takes them as one list (the boxed calling convention).

    >>> make_boxed_func(lambda a, b: (a + b,))([1, 2])
    (3,)
    """

    def boxed(inputs: list[Any]) -> Any:
        return f(*inputs)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: CompilerFunction) -> CompilerFunction:
    """Wrap a compiler so that the functions it returns take their inputs as one list (the boxed calling convention)."""

    def boxed_compiler(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFunction:
        return make_boxed_func(compiler(graph_module, example_inputs))

    return boxed_compiler


def as_boxed(compiled: CompiledFunction) -> BoxedCall:
    """The result of a compiler as a function of one list."""
    if not callable(compiled):
        raise InputTypeError(
            f"The compiler returned an object of type {type(compiled).__name__}.",
            why="a compiler takes a graph and example inputs, and returns a callable that takes the graph's inputs",
            fix="Return such a callable; the graph module itself is one.",
        )
    if getattr(compiled, "_boxed_call", False):
        return compiled
    if isinstance(compiled, fx.GraphModule) and not (compiled._forward_hooks or compiled._forward_pre_hooks):
        # Calling forward directly skips Module.__call__, which takes longer than a small graph.
        return lambda inputs: compiled.forward(*inputs)
    return make_boxed_func(compiled)
