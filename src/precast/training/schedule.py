"""Schedules the collectives of a program: each starts as early as possible, and is waited for as late as possible.

Before::

    grad_2 = …; grad_1 = …; sum = all_reduce(cat(grad_2)); done = wait(sum); sum_1 = all_reduce(cat(grad_1)); …

After::

    grad_2 = …; sum = all_reduce(cat(grad_2)); grad_1 = …; sum_1 = all_reduce(cat(grad_1)); done = wait(sum); …

Gathering parameters starts one bucket ahead of the one in use, so that no more than two are whole at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import fx

from precast.ops.facts import is_view

_aten = torch.ops.aten
_MOVES = frozenset(
    {
        _aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.cat.default, _aten.clone.default,
        _aten.t.default, _aten.permute.default, _aten.transpose.int, _aten.constant_pad_nd.default,
        _aten.detach.default, _aten.pad.default, _aten.flatten.using_ints,
    }
)  # fmt: skip
"""Operators that may be between a gradient and its exchange."""


def schedule_collectives(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, reordered; the module itself if it has no collectives."""
    names = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    if not any(name.startswith("_c10d_functional") for name in names):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in _order(module.graph):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)


def _is(node: fx.Node, *names: str) -> bool:
    return node.op == "call_function" and str(node.target) in {f"_c10d_functional.{name}.default" for name in names}


def _order(graph: fx.Graph) -> Iterator[fx.Node]:
    """All nodes, each after its arguments."""
    writer = _Order(graph)
    for node in graph.nodes:
        if not writer.may_wait(node):
            yield from writer.emit(node)


class _Order:
    """Nodes in graph order, except collectives: those of gradients as early as possible, waits when needed."""

    def __init__(self, graph: fx.Graph) -> None:
        self._done: set[fx.Node] = set()
        gathers = [node for node in graph.nodes if _is(node, "all_gather_into_tensor")]
        self._early = _glue([node for node in graph.nodes if _is(node, "all_reduce", "reduce_scatter_tensor")])
        self._late = {*_glue(gathers), *gathers, *(node for node in graph.nodes if _is(node, "wait_tensor"))}
        for node in graph.nodes:
            if _only_reads(node, self._late):
                self._late.add(node)
        self._next = dict(pairwise(gathers))

    def may_wait(self, node: fx.Node) -> bool:
        return node in self._late or node in self._done

    def emit(self, node: fx.Node) -> Iterator[fx.Node]:
        """The node, after its dependencies, and the collectives that can then start."""
        if node in self._done:
            return
        for each in node.all_input_nodes:
            yield from self.emit(each)
        self._done.add(node)
        yield node
        if _is(node, "wait_tensor"):
            (started,) = node.all_input_nodes
            if started in self._next and _needs_no_more(self._next[started], self._done):
                yield from self.emit(self._next[started])
        for user in node.users if node.op == "call_function" else ():
            if user in self._early and user not in self._done and _needs_no_more(user, self._done):
                yield from self.emit(user)


def _needs_no_more(node: fx.Node, done: set[fx.Node]) -> bool:
    """Whether all of the node's dependencies are computed, or only move elements that are."""
    return all(
        each in done or (each.target in _MOVES and _needs_no_more(each, done)) or each.op == "placeholder"
        for each in node.all_input_nodes
    )


def _glue(starts: list[fx.Node]) -> set[fx.Node]:
    """Collectives, and the operators before them that only move elements."""
    found, waiting = set(starts), list(starts)
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each.target in _MOVES and each not in found and set(each.users) <= found:
                found.add(each)
                waiting.append(each)
    return found


def _only_reads(node: fx.Node, late: set[fx.Node]) -> bool:
    """Whether a node only reads parts of what is gathered."""
    is_look = node.target in _MOVES or is_view(node) or node.target is operator.getitem
    return is_look and bool(node.all_input_nodes) and all(each in late for each in node.all_input_nodes)
