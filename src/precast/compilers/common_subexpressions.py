"""Common subexpression elimination.

Before: ``a = sin(x); b = sin(x); return a + b``
After:  ``a = sin(x); return a + a``

Two nodes are the same expression if they call the same op on the same arguments. Never merged: random ops (each draw is
a new one), ops that mutate or have side effects, values that are mutated, and two values that are both returned
(directly or through views): the caller may write into one of them.
"""

import operator
import struct
from collections.abc import Hashable, Iterable

from torch import fx
from torch._ops import HigherOrderOperator

from precast.ops.facts import is_effectful, is_mutating, is_random, is_view


def fx_graph_cse(graph: fx.Graph) -> fx.Graph:
    """Return a new graph after common-subexpression elimination: equal expressions are computed once."""
    mutated = _storages_of(_mutated_values(graph))
    returned = _storages_of(graph.output_node().all_input_nodes, with_views=False)
    new_graph = fx.Graph()
    new_nodes: dict[fx.Node, fx.Node] = {}
    known: dict[Hashable, fx.Node] = {}
    exposed: set[fx.Node] = set()
    for node in graph.nodes:
        if is_mutating(node):
            known.clear()  # from here on, the same op on the same argument may return something else
        key = _expression(node, new_nodes) if _may_merge(node) and node not in mutated else None
        merged = known.get(key) if key is not None else None
        if merged is not None and not (node in returned and merged in exposed):
            new_nodes[node] = merged
        else:
            merged = new_nodes[node] = new_graph.node_copy(node, new_nodes.__getitem__)
            if key is not None:
                known[key] = merged
        if node in returned:
            exposed.add(merged)
    new_graph.lint()
    return new_graph


def _may_merge(node: fx.Node) -> bool:
    if node.op not in ("call_function", "get_attr"):
        return False
    return not (is_random(node) or is_mutating(node) or is_effectful(node))


def _expression(node: fx.Node, new_nodes: dict[fx.Node, fx.Node]) -> Hashable | None:
    """Return a key of the node's expression, over nodes of the new graph; None if it is not hashable."""
    key = (node.op, node.target, _argument_key(node.args, new_nodes), _argument_key(node.kwargs, new_nodes))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _argument_key(argument: object, new_nodes: dict[fx.Node, fx.Node]) -> Hashable:
    """Return a key equal only for arguments that mean the same: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(argument, fx.Node):
        return new_nodes[argument]
    if isinstance(argument, tuple | list):
        return ("sequence", *(_argument_key(item, new_nodes) for item in argument))
    if isinstance(argument, dict):
        return ("dict", *((name, _argument_key(argument[name], new_nodes)) for name in sorted(argument)))
    if isinstance(argument, slice):
        return ("slice", *(_argument_key(part, new_nodes) for part in (argument.start, argument.stop, argument.step)))
    if isinstance(argument, float):
        return ("float", struct.pack("d", argument))
    return (type(argument), argument)


def _mutated_values(graph: fx.Graph) -> list[fx.Node]:
    return [argument for node in graph.nodes if is_mutating(node) for argument in node.all_input_nodes]


def _storages_of(values: Iterable[fx.Node], *, with_views: bool = True) -> set[fx.Node]:
    """Return the nodes that may share memory with ``values``: what they are views of, and all views of those."""
    waiting, found = list(values), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if _may_alias_arguments(node):
            waiting += node.all_input_nodes
        waiting += [user for user in node.users if with_views and _may_alias_arguments(user)]
    return found


def _may_alias_arguments(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    # getitem takes a tensor out of a tuple; an in-place op returns its argument; a branch may return an operand.
    if node.target is operator.getitem or isinstance(node.target, HigherOrderOperator):
        return True
    return is_view(node) or is_mutating(node)
