"""Data-dependent sizes in a graph: which nodes make them, and which need some of them to be equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import canonicalize_bool_expr, free_unbacked_symbols

from precast.graph.nodes import has_value, tensor_of, value_of
from precast.native.loops.index import product
from precast.native.rules.sizes import symbols_in, to_index
from precast.native.sizes import is_known

RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
ASSERT_SCALAR = torch.ops.aten._assert_scalar.default


def makes_sizes(node: fx.Node) -> bool:
    """Whether the result has new data-dependent sizes; torch's tags do not always say so."""
    symbols = set(symbols_in(value_of(node)))
    return bool(symbols) and not symbols <= {
        name for each in node.all_input_nodes if has_value(each) for name in symbols_in(value_of(each))
    }


def compares_sizes(node: fx.Node, *, checked: bool) -> bool:
    """Whether inputs are compatible only if data-dependent sizes are equal: torch checks that at run time.

    With ``checked``, not if assertions in the graph do so.
    """
    if node.target in RESHAPES and not _keeps_count(node):
        return True
    values = [value_of(each) for each in node.all_input_nodes if has_value(each)]
    sizes: list[object] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    unknown = {symbol for size in sizes for symbol in free_unbacked_symbols(size)}
    if len(unknown) < 2:
        return False
    shape_env = next(size.node.shape_env for size in sizes if isinstance(size, torch.SymInt))
    asserted = {each.expr for found in shape_env.deferred_runtime_asserts.values() for each in found}
    if checked:
        conditions = (each.args[0] for each in node.graph.find_nodes(op="call_function", target=ASSERT_SCALAR))
        values = [value_of(each) for each in conditions if isinstance(each, fx.Node)]
        asserted -= {canonicalize_bool_expr(each.node.expr) for each in values if isinstance(each, torch.SymBool)}
    return any(each.is_Relational and each.free_symbols <= unknown and each.free_symbols for each in asserted)


def _keeps_count(node: fx.Node) -> bool:
    """Whether a view has as many elements as its base, whatever the data-dependent sizes are."""
    source = node.args[0]
    assert isinstance(source, fx.Node), f"{node} is a view of nothing"
    shapes: list[Sequence[int | torch.SymInt]] = [tensor_of(each).shape for each in (source, node)]
    if not any(free_unbacked_symbols(size) for shape in shapes for size in shape):
        return True
    if not all(isinstance(size, int) or is_known(size) for shape in shapes for size in shape):
        return False
    before, after = (product(to_index(size) for size in shape) for shape in shapes)
    return before == after
