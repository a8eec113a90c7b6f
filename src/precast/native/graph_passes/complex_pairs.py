"""Decompose complex arithmetic: complex tensors become pairs of real ones, which native code handles.

Before::

    z = view_as_complex(x)              c64[8, 4]
    y = view_as_real(z * rotation)      rotation: c64[4], an input

After::

    r = view_as_real(rotation)          f32[4, 2]: complex only at the graph's boundary
    a, b, c, d = x[…, 0], x[…, 1], r[…, 0], r[…, 1]
    y = stack((a * c - b * d, a * d + b * c), -1)

Operators without a rule are unchanged: they receive complex tensors, and their results are split into pairs again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from precast.graph.nodes import copy_provenance, has_value, results_of, set_value, value_of
from precast.native.graph_passes.complex_rules import ALONE, RULES
from precast.native.graph_passes.complex_values import Pair, Real, Written

_aten = torch.ops.aten
_OF_LAZY = (_aten._neg_view.default, _aten.resolve_neg.default)
_BORDER = (_aten.view_as_real.default, _aten.view_as_complex.default)


def complex_as_pairs(module: fx.GraphModule, *, alone: bool = False) -> fx.GraphModule:
    """A copy whose complex tensors are pairs wherever an operator has a rule; the module itself if none has.

    `alone`: without torch at run time. Torch's Fourier transforms are faster than ours, and are kept where available.
    """
    rules: Mapping[Any, Callable[..., Any]] = {**RULES, **ALONE} if alone else RULES
    is_passed_on = alone and any(isinstance(each, fx.Node) and _is_input(each) for each in results_of(module.graph))
    if not is_passed_on and not any(_is_ours(node, rules) and not _is_at_boundary(node) for node in module.graph.nodes):
        return module
    return fx.GraphModule(module, _Rewriting(module, rules, alone).graph)


def _is_input(node: fx.Node) -> bool:
    """Whether it is a complex input or constant."""
    return node.op in ("placeholder", "get_attr") and has_value(node) and _is_complex(node)


def _is_ours(node: fx.Node, rules: Mapping[Any, object]) -> bool:
    """Whether a rule decomposes the node."""
    values = [value_of(each) for each in (node, *node.all_input_nodes) if has_value(each)]
    return node.op == "call_function" and node.target in rules and any(map(_is_lazy_or_complex, values))


def _is_lazy_or_complex(value: object) -> bool:
    tensors = [each for each in pytree.tree_leaves(value) if isinstance(each, FakeTensor)]
    return any(each.is_complex() or each.is_neg() for each in tensors) and all(each.is_cpu for each in tensors)


def _is_lazy(node: fx.Node) -> bool:
    """Whether a node reads a lazily negated real view (of a conjugate): pairs have no such views."""
    values = [value_of(each) for each in (node, *node.all_input_nodes) if has_value(each)]
    tensors = [each for each in values if isinstance(each, FakeTensor)]
    is_real = len(tensors) == len(values) and not any(each.is_complex() for each in tensors)
    return is_real and any(each.is_neg() for each in tensors[1:]) and node.target not in _OF_LAZY


def _is_at_boundary(node: fx.Node) -> bool:
    """Whether a node only shows an input as pairs, or pairs as a result."""
    if node.target is _aten.view_as_real.default:
        return all(each.op in ("placeholder", "get_attr") for each in node.all_input_nodes)
    return node.target is _aten.view_as_complex.default and all(each.op == "output" for each in node.users)


class _Rewriting:
    """Rewrites the graph; `pairs` maps complex nodes of the old graph to their pairs in the new one."""

    def __init__(self, module: fx.GraphModule, rules: Mapping[Any, Callable[..., Any]], alone: bool):
        self.graph, self.rules, self.alone = fx.Graph(), rules, alone
        values = (value_of(node) for node in module.graph.nodes if has_value(node))
        self.mode = next(each.fake_mode for each in values if isinstance(each, FakeTensor))
        self.copies: dict[fx.Node, fx.Node] = {}
        self.pairs: dict[fx.Node, Pair] = {}
        self.at = next(iter(module.graph.nodes))
        for node in module.graph.nodes:
            self.at = node
            if node.op == "output":
                self.graph.output(fx.map_arg(node.args[0], self.result))
            elif _is_lazy(node):
                self.copies[node] = self.call(node.target, *fx.map_arg(node.args, self.plain), **node.kwargs)
            elif not _is_ours(node, rules) or not self.rewrite(node):
                self.copies[node] = self.graph.node_copy(node, self.plain)

    def rewrite(self, node: fx.Node) -> bool:
        """Apply the node's rule; False if it does not support these arguments."""
        writer = Written(self.call, node.target, value_of(node))
        args, kwargs = (self.operands(each) for each in (node.args, node.kwargs))
        made = self.rules[node.target](writer, *args, **kwargs)
        if made is None:
            return False
        if isinstance(made, Pair):
            self.pairs[node] = made
        else:
            self.copies[node] = made.node
        return True

    def operands(self, arguments: Any) -> Any:
        """Arguments for a rule: complex tensors as pairs; others, and sizes, mapped to the new graph."""
        if isinstance(arguments, fx.Node):
            value = value_of(arguments) if has_value(arguments) else None
            if isinstance(value, torch.Tensor):
                return self.pair(arguments) if value.is_complex() else Real(self.copies[arguments], self.call)
            return self.copies[arguments]
        if isinstance(arguments, tuple | list):
            return [self.operands(each) for each in arguments]
        if isinstance(arguments, dict):
            return {key: self.operands(each) for key, each in arguments.items()}
        return arguments

    def pair(self, node: fx.Node) -> Pair:
        """A complex tensor of the old graph as a pair: one that is complex in the new graph is viewed as real."""
        if node not in self.pairs:
            source, value = self.copies[node], value_of(node)
            assert isinstance(value, torch.Tensor)
            if value.is_conj():
                source = self.call(_aten.resolve_conj.default, source)
            self.pairs[node] = Pair(Real(self.call(_aten.view_as_real.default, source), self.call))
        return self.pairs[node]

    def plain(self, node: fx.Node) -> fx.Node:
        """A value of the old graph in its own dtype: pairs become complex tensors with the old strides."""
        if node not in self.copies:
            value = value_of(node)
            assert isinstance(value, torch.Tensor)
            self.copies[node] = self.pairs[node].as_complex(value, lazily=not self.alone)
        return self.copies[node]

    def result(self, node: fx.Node) -> fx.Node:
        """A result of the graph; without torch, a returned input is viewed as pairs too."""
        if self.alone and _is_input(node):
            value = value_of(node)
            assert isinstance(value, torch.Tensor)
            return self.pair(node).as_complex(value, lazily=False)
        return self.plain(node)

    def size(self, size: torch.SymInt) -> fx.Node:
        """A size as a node: a dimension of an existing tensor, or twice that."""
        expression = size.node.expr
        for factor in (1, 2):
            for node in reversed(self.graph.nodes):
                value = value_of(node) if has_value(node) else None
                shape: Sequence[object] = value.shape if isinstance(value, torch.Tensor) else ()
                for dim, each in enumerate(shape):
                    if isinstance(each, torch.SymInt) and each.node.expr * factor == expression:
                        made = self.call(_aten.sym_size.int, node, dim)
                        return made if factor == 1 else self.call(operator.mul, made, factor)
        raise AssertionError(f"no tensor has the size {size}")

    def call(self, target: Any, *args: Argument, **options: Any) -> fx.Node:
        args, options = pytree.tree_map_only(torch.SymInt, self.size, (args, options))
        made = self.graph.call_function(target, args, options)
        values, kept = pytree.tree_map_only(fx.Node, value_of, (args, options))
        with self.mode:
            set_value(made, target(*values, **kept))
        if self.at.op == "call_function":
            copy_provenance(self.at, made)
        return made


def complex_boundary(module: fx.GraphModule) -> tuple[fx.GraphModule, frozenset[str]]:
    """The graph with pairs for complex inputs and results, and those inputs' names and results' numbers."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    opened = set[str]()
    for node in list(graph.nodes):
        if _is_input(node):
            users = list(node.users)
            if users and all(each.target is _aten.view_as_real.default for each in users):
                opened.add(node.name)
                set_value(node, value_of(users[0]))
                for each in users:
                    each.replace_all_uses_with(node)
                    graph.erase_node(each)
    results = list(results_of(graph))
    for number, node in enumerate(results):
        if isinstance(node, fx.Node) and node.target is _aten.view_as_complex.default:
            results[number] = node.args[0]
            opened.add(f"result {number}")
    graph.output_node().args = (tuple(results),)
    graph.eliminate_dead_code(lambda node: node.target not in _BORDER)
    return (fx.GraphModule(module, graph), frozenset(opened)) if opened else (module, frozenset())


def _is_complex(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_complex()
