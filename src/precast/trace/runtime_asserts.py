"""Writes the assumptions about unbacked symbols (``torch._check``) into the graph, so that each run checks them.

Before: ``item = item(n); slice = slice(x, 0, 0, item)``, and ``2 <= item`` known only to the tracer
After:  ``item = item(n); ge = ge(item, 2); _assert_scalar(ge, …); slice = …``
"""

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.utils._sympy.value_ranges import ValueRanges

from precast._torch_compat import deferred_asserts
from precast.graph.nodes import copy_provenance, has_value, set_value, source_line_of, value_of
from precast.trace.provenance import format_users_summary

_aten = torch.ops.aten


def has_unknown_values(graph: fx.Graph) -> bool:
    """Whether a node introduces unbacked symbols."""
    return any("unbacked_bindings" in node.meta for node in graph.nodes)


def record_runtime_asserts(module: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Add the assertions to the module's graph."""
    shape_env = mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    _bound_floats(shape_env)
    messages = {each: node.args[1] for node in _asserts(module) if (each := _condition(node)) is not None}
    with mode:
        insert_deferred_runtime_asserts(module, shape_env, "export", export=True)
    for node in module.graph.nodes:
        if node.op == "call_function" and not has_value(node):
            set_value(node, _computed(node))
        _forget_replaced_symbols(node, shape_env)
    lines = _lines_of_asserts(shape_env)
    for node in _asserts(module):
        condition = _condition(node)
        # The program's own assertions keep their messages.
        if condition in messages:
            node.args = (node.args[0], messages[condition])
        elif condition in lines:
            node.stack_trace = lines[condition] or None
            line = source_line_of(node)
            place = f" in `{line.code}`" if line is not None else ""
            node.args = (node.args[0], f"Runtime assertion failed for expression {condition}{place}")
    module.recompile()


def _bound_floats(shape_env: ShapeEnv) -> None:
    """Note bounds of floats as their ranges, which torch does for integers only, and asserts for both."""
    for symbol, group in deferred_asserts(shape_env).items():
        if symbol is None or not shape_env.var_to_range[symbol].is_float:
            continue
        for expression in [each.expr for each in group if isinstance(each.expr, sympy.Le | sympy.Ge)]:
            if expression.gts == symbol and expression.lts.is_number:
                shape_env.var_to_range[symbol] &= ValueRanges(sympy.Float(expression.lts), sympy.oo)
            if expression.lts == symbol and expression.gts.is_number:
                shape_env.var_to_range[symbol] &= ValueRanges(-sympy.oo, sympy.Float(expression.gts))


def _lines_of_asserts(shape_env: ShapeEnv) -> dict[sympy.Basic, str]:
    """The user's frames that each condition comes from."""
    conditions = [each for group in shape_env.deferred_runtime_asserts.values() for each in group]
    return {_written(each.expr): format_users_summary(each.stack.summary()) for each in conditions}


def record_constants(module: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Add checks that tensors hold the number that the program asserted for their item.

    Tracing replaces the item by that number, so that a condition on the item would always hold.
    """
    env, graph = mode.shape_env, module.graph
    assert env is not None, "our fake modes have a shape environment"
    for node in list(graph.nodes):
        symbols = node.meta.get("unbacked_bindings") or ()
        known = next((env.replacements[each] for each in symbols if each in env.replacements), None)
        if node.target is not _aten._local_scalar_dense.default or not isinstance(known, sympy.Integer):
            continue
        tensor = node.args[0]
        with mode, graph.inserting_after(node):
            holds = graph.call_function(_aten.eq.Scalar, (tensor, int(known)))
            set_value(holds, _aten.eq.Scalar(value_of(tensor), int(known)))
        with graph.inserting_after(holds):
            message = f"Expected an item of {known}, as the program said with torch._check"
            check = graph.call_function(_aten._assert_async.msg, (holds, message))
            set_value(check, None)
        for each in (holds, check):
            copy_provenance(node, each)
    module.recompile()


def may_fail(module: fx.GraphModule, mode: FakeTensorMode) -> bool:
    """Whether the program made assumptions about unbacked symbols that may fail at run time."""
    env = mode.shape_env
    if env is None or not has_unknown_values(module.graph):
        return False
    symbols = {symbol for node in module.graph.nodes for symbol in node.meta.get("unbacked_bindings") or ()}
    asserts = deferred_asserts(env)
    return any(symbol in env.replacements or asserts.get(symbol) for symbol in symbols)


def _asserts(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="call_function", target=_aten._assert_scalar.default))


def _condition(node: fx.Node) -> sympy.Basic | None:
    """The asserted condition; None if tracing knew its value."""
    condition = node.args[0]
    value = value_of(condition) if isinstance(condition, fx.Node) and has_value(condition) else None
    return _written(value.node.expr) if isinstance(value, torch.SymBool) else None


def _written(expression: sympy.Basic) -> sympy.Basic:
    """A condition in torch's form: for integers, ``x < 4`` is written ``x <= 3``."""
    match expression:
        case sympy.StrictLessThan():
            return sympy.Le(expression.lhs, expression.rhs - 1)
        case sympy.StrictGreaterThan():
            return sympy.Ge(expression.lhs, expression.rhs + 1)
    return expression


def _forget_replaced_symbols(node: fx.Node, shape_env: ShapeEnv) -> None:
    """Drop bindings of symbols that have been replaced by other expressions."""
    bindings: dict[sympy.Symbol, object] = node.meta.get("unbacked_bindings") or {}
    kept = {symbol: path for symbol, path in bindings.items() if symbol not in shape_env.replacements}
    if len(kept) < len(bindings):
        node.meta["unbacked_bindings"] = kept
        if not kept:
            del node.meta["unbacked_bindings"]


def _computed(node: fx.Node) -> object:
    """The value of a node that computes on sizes; ``None`` for one that is called for its effect."""
    if not callable(node.target) or "assert" in node.name or "constrain" in node.name:
        return None
    args = [value_of(argument) if isinstance(argument, fx.Node) else argument for argument in node.args]
    result: object = node.target(*args, **node.kwargs)
    return result
