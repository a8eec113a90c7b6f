"""Turns regions of a different grad mode or of autocast into subgraphs, so that they do not depend on node order.

Before: ``_set_grad_enabled(False); mul = mul(x, 2); _set_grad_enabled(True); add = add(mul, x)``
After:  ``region = wrap_with_set_grad_enabled(False, submod_0, x); mul = region[0]; add = add(mul, x)``
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import fx
from torch._higher_order_ops import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.node import Argument

from precast.graph.nodes import copy_provenance, set_value, value_of

_SWITCHES = (torch._C._set_grad_enabled, _enter_autocast, _exit_autocast)


@dataclass(frozen=True)
class _Surroundings:
    """The state around a node: grad mode if it differs from the outer one, and autocast from the outside in."""

    grad_mode: bool | None = None
    autocasts: tuple[tuple[str, tuple[Argument, ...]], ...] = ()

    @property
    def is_usual(self) -> bool:
        return self.grad_mode is None and not self.autocasts


def fold_regions(module: fx.GraphModule, *, grad_mode: bool = True) -> fx.GraphModule:
    """The module with its regions as subgraphs, in its own subgraphs too; the same object if it has none.

    ``grad_mode`` is the mode that the module as a whole runs in.
    """
    children = {name: child for name, child in module.named_children() if isinstance(child, fx.GraphModule)}
    folded = {name: fold_regions(child, grad_mode=grad_mode) for name, child in children.items()}
    has_switches = any(node.target in _SWITCHES for node in module.graph.nodes)
    if not has_switches and all(folded[name] is child for name, child in children.items()):
        return module
    return _Folding(module, folded, grad_mode).result()


class _Folding:
    """Folds one graph."""

    def __init__(self, module: fx.GraphModule, children: dict[str, fx.GraphModule], grad_mode: bool) -> None:
        self._module = module
        self._root = torch.nn.Module()
        self._children = children
        self._grad_mode = grad_mode
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def result(self) -> fx.GraphModule:
        for surroundings, nodes in groupby(self._placed(), key=lambda pair: pair[1]):
            region = [node for node, _ in nodes]
            if surroundings.is_usual:
                for node in region:
                    self._copies[node] = self._graph.node_copy(node, self._copied)
            else:
                self._fold(region, surroundings)
        return fx.GraphModule(self._root, self._graph, type(self._module).__name__)

    def _copied(self, node: fx.Node) -> fx.Node:
        """The copy of an earlier node; a subgraph attribute is read before its first use."""
        if node not in self._copies:
            assert node.op == "get_attr", f"{node.name} is read before it is computed"
            self._root.add_module(str(node.target), self._children[str(node.target)])
            self._copies[node] = self._graph.node_copy(node)
        return self._copies[node]

    def _placed(self) -> Iterator[tuple[fx.Node, _Surroundings]]:
        """Every node except switches and subgraph attributes, with its state; inputs and the output have none."""
        now = _Surroundings()
        for node in self._module.graph.nodes:
            if node.target is torch._C._set_grad_enabled:
                now = replace(now, grad_mode=None if node.args[0] == self._grad_mode else bool(node.args[0]))
            elif node.target is _enter_autocast:
                now = replace(now, autocasts=(*now.autocasts, (node.name, tuple(node.args))))
            elif node.target is _exit_autocast:
                name = node.args[0].name
                now = replace(now, autocasts=tuple(each for each in now.autocasts if each[0] != name))
            elif node.op in ("placeholder", "output"):
                yield node, _Surroundings()
            elif node.op != "get_attr":
                yield node, now

    def _fold(self, region: Sequence[fx.Node], surroundings: _Surroundings) -> None:
        inside = set(region)
        inputs = list(dict.fromkeys(n for node in region for n in node.all_input_nodes if n not in inside))
        outputs = [node for node in region if any(user not in inside for user in node.users)]
        subgraph = self._subgraph(region, [n for n in inputs if n.op != "get_attr"], outputs)
        arguments = [self._copies[n] for n in inputs if n.op != "get_attr"]
        layers: list[tuple[fx.node.Target, tuple[Argument, ...]]] = []
        if surroundings.grad_mode is not None:
            layers.append((wrap_with_set_grad_enabled, (surroundings.grad_mode,)))
        layers += [(wrap_with_autocast, settings) for _, settings in reversed(surroundings.autocasts)]
        for target, settings in layers[:-1]:
            subgraph = _wrapped(subgraph, target, settings)
        called = self._call(subgraph, *layers[-1], arguments)
        copy_provenance(region[0], called)
        for position, node in enumerate(outputs):
            item = self._graph.create_node("call_function", operator.getitem, (called, position), name=node.name)
            item.meta = dict(node.meta)
            self._copies[node] = item

    def _call(
        self,
        subgraph: fx.GraphModule,
        target: fx.node.Target,
        settings: tuple[Argument, ...],
        arguments: Sequence[fx.Node],
    ) -> fx.Node:
        number = 0
        while hasattr(self._root, f"submod_{number}") or f"submod_{number}" in self._children:
            number += 1
        self._root.add_module(f"submod_{number}", subgraph)
        attribute = self._graph.get_attr(f"submod_{number}")
        called = self._graph.create_node("call_function", target, (*settings, attribute, *arguments))
        set_value(called, _result_values(subgraph))
        return called

    def _subgraph(
        self, region: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> fx.GraphModule:
        graph, root = fx.Graph(), torch.nn.Module()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies:
                assert node.op == "get_attr", f"{node.name} is read before it is computed"
                root.add_module(str(node.target), self._children[str(node.target)])
                copies[node] = graph.node_copy(node)
            return copies[node]

        for node in region:
            copies[node] = graph.node_copy(node, copied)
        graph.output(tuple(copies[node] for node in outputs))
        return fx.GraphModule(root, graph)


def _wrapped(subgraph: fx.GraphModule, target: fx.node.Target, settings: tuple[Argument, ...]) -> fx.GraphModule:
    """A graph that only calls ``subgraph`` through ``target``."""
    graph, root = fx.Graph(), torch.nn.Module()
    root.add_module("submod_0", subgraph)
    arguments = []
    for node in subgraph.graph.nodes:
        if node.op == "placeholder":
            arguments.append(graph.placeholder(node.name))
            arguments[-1].meta = dict(node.meta)
    called = graph.create_node("call_function", target, (*settings, graph.get_attr("submod_0"), *arguments))
    values = _result_values(subgraph)
    set_value(called, values)
    items = []
    for position, value in enumerate(values):
        items.append(graph.create_node("call_function", operator.getitem, (called, position)))
        set_value(items[-1], value)
    graph.output(tuple(items))
    return fx.GraphModule(root, graph)


def _result_values(subgraph: fx.GraphModule) -> tuple[object, ...]:
    results = subgraph.graph.output_node().args[0]
    assert isinstance(results, tuple), "regions return one flat tuple"
    return tuple(value_of(result) for result in results if isinstance(result, fx.Node))
