"""The boxed calling convention: one list goes in, and the callee may empty it to free inputs early."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from precast.backend import CompiledFunction, CompilerFunction

BoxedCall = Callable[[list[Any]], Sequence[Any]]


def make_boxed_func(f: CompiledFunction) -> CompiledFunction:
    """Let a function of flat positional inputs be called with one list.

    >>> make_boxed_func(lambda a, b: (a + b,))([1, 2])
    (3,)
    """

    def boxed(inputs: list[Any]) -> Any:
        return f(*inputs)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: CompilerFunction) -> CompilerFunction:
    """Let what a compiler returns be called with one list."""

    def boxed_compiler(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFunction:
        return make_boxed_func(compiler(graph_module, example_inputs))

    return boxed_compiler


def as_boxed(compiled: CompiledFunction) -> BoxedCall:
    """Whatever a compiler returned, as a function of one list."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    if isinstance(compiled, fx.GraphModule) and not (compiled._forward_hooks or compiled._forward_pre_hooks):
        # What a module does around its forward takes longer than a small graph.
        return lambda inputs: compiled.forward(*inputs)
    return make_boxed_func(compiled)
