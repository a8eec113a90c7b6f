"""Checks of linear algebra as plain calls, without effect tokens: native code keeps checks in graph order anyway.

Before::

    token = _make_token()
    effects = with_effects(token, _linalg_check_errors, info, "linalg.inv", is_matrix=True)
    _sink_tokens([effects[0]])

After::

    _linalg_check_errors(info, "linalg.inv", is_matrix=True)
"""

from __future__ import annotations

import torch
from torch import fx

from precast.graph.nodes import copy_provenance, set_value

_CHECK = torch.ops.aten._linalg_check_errors.default
_SINK = torch.ops.prims._sink_tokens.default
_MAKE = torch.ops.prims._make_token.default


def checks_without_tokens(module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which these checks have no tokens; the module itself if it has none of them."""
    if not any(_is_ordered_check(node) for node in module.graph.nodes):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if _is_ordered_check(node):
            token, _, *arguments = node.args
            check = graph.call_function(_CHECK, fx.map_arg(tuple(arguments), copies.__getitem__), dict(node.kwargs))
            copy_provenance(node, check)
            set_value(check, None)
            assert isinstance(token, fx.Node)
            for user in node.users:
                # The check returns nothing except the token.
                copies[user] = copies[token]
        elif node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    _drop_idle_tokens(graph)
    return fx.GraphModule(module, graph)


def _is_ordered_check(node: fx.Node) -> bool:
    return str(node.target) == "with_effects" and len(node.args) > 1 and node.args[1] is _CHECK


def _drop_idle_tokens(graph: fx.Graph) -> None:
    """Remove tokens that no effect uses."""
    for sink in [node for node in graph.nodes if node.target is _SINK]:
        (tokens,) = sink.args
        assert isinstance(tokens, list | tuple)
        kept = [token for token in tokens if isinstance(token, fx.Node) and token.target is not _MAKE]
        if kept:
            sink.args = (kept,)
        else:
            graph.erase_node(sink)
    for node in [node for node in graph.nodes if node.target is _MAKE and not node.users]:
        graph.erase_node(node)
