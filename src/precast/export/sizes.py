"""Collects the symbolic sizes in a program's graph: those of inputs, and data-dependent ones (unbacked symbols)."""

from collections.abc import Iterator

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils import _pytree as pytree

from precast.export.verifier import graphs_of
from precast.graph.program import Program
from precast.graph.sizes import SizeGuard, SizeRange, SizeSymbol, SymbolicSizes
from precast.trace.fake_inputs import FakeInputs
from precast.trace.runtime_asserts import has_unknown_values, record_runtime_asserts


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
    """The program's sizes, with its unbacked symbols and all guards from tracing."""
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
    """The program with its runtime assertions as nodes; the same object if there are none."""
    if not has_unknown_values(program.graph):
        return program
    copy = program.replace(graph=program.copy_graph())
    record_runtime_asserts(copy.module, fake_mode_of(program))
    return copy
