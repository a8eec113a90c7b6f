"""Everything that a program's graph says about symbolic sizes: those of inputs, and those that only running gives.

Writes what tracing was told of unknown values (``torch._check``) into the graph, so that each run checks it.

Before: ``item = item(n); slice = slice(x, 0, 0, item)``, and ``2 <= item`` known to the tracer alone
After:  ``item = item(n); ge = ge(item, 2); _assert_scalar(ge, …); slice = …``
"""

from collections.abc import Iterator

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.utils import _pytree as pytree

from precast.export.verifier import graphs_of
from precast.graph.nodes import has_value, set_value, value_of
from precast.graph.program import Program
from precast.graph.sizes import SizeGuard, SizeRange, SizeSymbol, SymbolicSizes
from precast.trace.fake_inputs import FakeInputs


def fake_mode_of(program: Program) -> FakeTensorMode:
    """The mode that made the program's values, so that sizes keep their symbols."""
    return _mode_of_values(program) or FakeInputs().mode


def _mode_of_values(program: Program) -> FakeTensorMode | None:
    for _, value in values_of(program.module):
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def values_of(module: fx.GraphModule) -> Iterator[tuple[str, object]]:
    for path, graph in graphs_of(module):
        for node in graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                yield f"{path}{node.name}", value


def collected_sizes(program: Program) -> SymbolicSizes:
    """The program's sizes, with the symbols of values that only running gives, and all guards of its tracing."""
    mode = _mode_of_values(program)
    if mode is None or mode.shape_env is None:
        return program.sizes
    shape_env: ShapeEnv = mode.shape_env
    first_seen: dict[sympy.Symbol, str] = {}
    for place, value in values_of(program.module):
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            for symbol in free_unbacked_symbols(value):
                first_seen.setdefault(symbol, place)
    declared = [symbol for symbol in program.sizes.symbols if symbol.name != str(symbol.symbol)]
    ordered = sorted(first_seen, key=lambda symbol: (len(str(symbol)), str(symbol)))
    unbacked = [
        SizeSymbol(symbol, str(symbol), first_seen[symbol], _range(shape_env, symbol))
        for symbol in ordered
        if symbol.is_integer
    ]
    known = {guard.condition for guard in program.sizes.guards}
    new = [SizeGuard(guard.expr) for guard in shape_env.guards if guard.expr not in known]
    return SymbolicSizes((*declared, *unbacked), (*program.sizes.guards, *new))


def _range(shape_env: ShapeEnv, symbol: sympy.Symbol) -> SizeRange:
    found = shape_env.var_to_range[symbol]
    lower = int(found.lower) if isinstance(found.lower, sympy.Integer) else 0
    upper = int(found.upper) if isinstance(found.upper, sympy.Integer) else None
    return SizeRange(lower, upper)


def with_runtime_asserts(program: Program) -> Program:
    """The same program with its assertions as nodes; the same object if there are none."""
    mode = fake_mode_of(program)
    shape_env = mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    if not any("unbacked_bindings" in node.meta for node in program.graph.nodes):
        return program
    copy = program.replace(graph=program.copy_graph())
    with mode:
        insert_deferred_runtime_asserts(copy.module, shape_env, "export", export=True)
    for node in copy.graph.nodes:
        if node.op == "call_function" and not has_value(node):
            set_value(node, _computed(node))
        _forget_replaced_symbols(node, shape_env)
    copy.module.recompile()
    return copy


def _forget_replaced_symbols(node: fx.Node, shape_env: ShapeEnv) -> None:
    """Numbers that turned out to be others introduce no symbols."""
    bindings = node.meta.get("unbacked_bindings") or {}
    kept = {symbol: path for symbol, path in bindings.items() if symbol not in shape_env.replacements}
    if len(kept) < len(bindings):
        node.meta["unbacked_bindings"] = kept
        if not kept:
            del node.meta["unbacked_bindings"]


def _computed(node: fx.Node) -> object:
    """The value of a node that only computes on sizes; ``None`` for one that is called for what it does."""
    if not callable(node.target) or "assert" in node.name or "constrain" in node.name:
        return None
    args = [value_of(argument) if isinstance(argument, fx.Node) else argument for argument in node.args]
    result: object = node.target(*args, **node.kwargs)
    return result
