"""Finds the least sizes for which the traced graph is valid.

Sizes are traced as if they were 2 or more, since programs take special paths for 0 and 1. Whether the graph is valid
for those is found by running the program on fake tensors that have them.

Before: ``x[-1]`` with ``x: f32[n, 3]``, n in 0..
After:  n in 1.., since an empty tensor has no last row.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from precast._torch_compat import example_sizes
from precast.graph.nodes import has_value, placeholders_of, results_of, value_of
from precast.graph.sizes import SizeRange, SizeSymbol, SymbolicSizes, evaluate
from precast.trace.capture.ones_in_examples import REFUSALS
from precast.trace.capture.prepare import FlatCallable, PreparedCall
from precast.trace.fake_inputs import FakeInputs
from precast.trace.retrace import AttributingInterpreter
from precast.trace.session import tracing_session

Binding = dict[sympy.Symbol, int]
_SPECIAL = (1, 0)


def with_least_sizes(
    sizes: SymbolicSizes, function: Callable[..., Any], call: PreparedCall, module: fx.GraphModule
) -> SymbolicSizes:
    """``sizes`` with the least lower bounds for which the graph is valid. Must run inside a ``tracing_session``."""
    examples = {symbol.symbol: call.fakes.example(symbol.name) for symbol in sizes.symbols}
    state = [item.tensor for item in call.state]
    flat = FlatCallable(function, state, call.call.tree, decisions=call.decisions, constants=call.constants)
    return _beginning_where_same(sizes, examples, flat, call.fake_inputs, module)


def with_least_sizes_of_graph(sizes: SymbolicSizes, before: fx.GraphModule, module: fx.GraphModule) -> SymbolicSizes:
    """The same for ``module``, a graph that was decomposed from the graph ``before``."""
    inputs = [value_of(node) for node in placeholders_of(before.graph)]
    known: list[Any] = [size for value in inputs if isinstance(value, torch.Tensor) for size in value.shape]
    known += [value for value in inputs if isinstance(value, torch.SymInt)]
    shape_env = next((size.node.shape_env for size in known if isinstance(size, torch.SymInt)), None)
    if shape_env is None:
        return sizes
    seen = example_sizes(shape_env)
    # Data-dependent sizes have no example, and no least size to find.
    examples = {symbol.symbol: int(seen[symbol.symbol]) for symbol in sizes.symbols if symbol.symbol in seen}
    with tracing_session(), torch.no_grad():
        return _beginning_where_same(sizes, examples, AttributingInterpreter(before).run, inputs, module)


def _beginning_where_same(
    sizes: SymbolicSizes,
    examples: Binding,
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    module: fx.GraphModule,
) -> SymbolicSizes:
    def begins(symbol: SizeSymbol) -> int:
        least = _SPECIAL[0] + 1
        for size in [each for each in _SPECIAL if each in symbol.range]:
            alone, together = {**examples, symbol.symbol: size}, dict.fromkeys(examples, size)
            # Calls that fail a guard are refused anyway.
            bindings = [each for each in (alone, together) if not sizes.failing_guards(each)]
            if bindings and not _does_the_same(function, inputs, module, bindings[0]):
                return least
            least = size
        return least

    return replace(sizes, symbols=tuple(_beginning_at(symbol, begins, examples) for symbol in sizes.symbols))


def _beginning_at(symbol: SizeSymbol, begins: Callable[[SizeSymbol], int], examples: Binding) -> SizeSymbol:
    is_size = symbol.range.lower >= 0
    if not is_size or symbol.range.lower > _SPECIAL[0] or examples.get(symbol.symbol, 0) <= _SPECIAL[0]:
        return symbol
    lower = max(symbol.range.lower, begins(symbol))
    return replace(symbol, range=SizeRange(lower, symbol.range.upper))


def _does_the_same(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    module: fx.GraphModule,
    binding: Mapping[sympy.Symbol, int],
) -> bool:
    """Whether the program runs with these sizes, and every value of the graph then has its traced size."""
    fakes = FakeInputs()
    try:
        # What the program warns of with these sizes is not about the call that is captured.
        with fakes.mode, fakes.unrecorded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = function(*[_of_sizes(value, binding) for value in inputs])
            _CheckingInterpreter(module, binding).run(*[_of_sizes(value, binding) for value in inputs])
    except REFUSALS:
        return False
    traced = [value_of(each) if isinstance(each, fx.Node) else each for each in results_of(module.graph)]
    return [_described(each, {}) for each in outputs] == [_described(each, binding) for each in traced]


class _OtherSizesError(ValueError):
    """A value in the graph has other sizes than were traced."""


class _CheckingInterpreter(AttributingInterpreter):
    """Runs the graph for one binding of sizes, and raises if a value does not have the sizes that follow from it."""

    def __init__(self, module: fx.GraphModule, binding: Mapping[sympy.Symbol, int]) -> None:
        super().__init__(module)
        self._binding = binding

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        traced = value_of(n) if has_value(n) else None
        if isinstance(traced, torch.Tensor) and _described(result, {}) != _described(traced, self._binding):
            raise _OtherSizesError(n.name)
        return result


def _of_sizes(value: Any, binding: Mapping[sympy.Symbol, int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return _number(value, binding)
    sizes, strides = (tuple(_number(each, binding) for each in group) for group in (value.shape, value.stride()))
    made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _number(value: Any, binding: Mapping[sympy.Symbol, int]) -> Any:
    return evaluate(value.node.expr, binding) if isinstance(value, torch.SymInt) else value


def _described(value: Any, binding: Mapping[sympy.Symbol, int]) -> object:
    """The dtype and sizes of a result; None for data-dependent sizes."""
    if isinstance(value, torch.Tensor):
        return value.dtype, _sizes(value.shape, binding)
    return _sizes([value], binding) if isinstance(value, int | torch.SymInt) else None


def _sizes(sizes: Sequence[int | torch.SymInt], binding: Mapping[sympy.Symbol, int]) -> list[object]:
    is_known = [not isinstance(size, torch.SymInt) or size.node.expr.free_symbols <= binding.keys() for size in sizes]
    return [_number(size, binding) if known else None for size, known in zip(sizes, is_known, strict=True)]
