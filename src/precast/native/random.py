"""Random operators draw from streams of the program instead of torch's generator.

Before::

    rand    = aten.rand.default([4])
    dropout = run_and_save_rng_state(aten.native_dropout.default, x, 0.5, True);  state = dropout[0];  kept = dropout[1]

After::

    seed     = precast.random_seed()
    stream   = precast.random_stream(seed, 0);  rand = run_with_rng_state(stream, aten.rand.default, [4])
    stream_1 = precast.random_stream(seed, 1);  kept = run_with_rng_state(stream_1, aten.native_dropout.default, …)

One seed is drawn from torch's generator for each call; each operator has its own stream number. A draw that the
backward repeats is given the operator's stream, where torch would be given the state of its generator. Operators that
native code cannot draw are unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Container

import torch
from torch import fx
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import FakeTensor
from torch.fx.node import Argument

from precast.graph.nodes import copy_provenance, has_value, placeholders_of, set_value, value_of
from precast.native.rules.registry import drawing_rule_for
from precast.native.split import is_representable
from precast.ops.facts import is_random
from precast.ops.own_operators import random_seed, random_stream

SEED_NAME = "random_seed"


def draw_from_streams(module: fx.GraphModule, device: str) -> fx.GraphModule:
    """Give a stream to every random operator that can be drawn natively; the same module if there is none."""
    drawn = {node for node in module.graph.nodes if _is_drawn(node, device)}
    if not drawn:
        return module
    writer = _Writer(drawn)
    for node in module.graph.nodes:
        writer.copy(node)
    return fx.GraphModule(module, writer.graph)


def _is_drawn(node: fx.Node, device: str) -> bool:
    """Whether the node draws, or repeats a draw, that native code can do."""
    if node.op != "call_function":
        return False
    if node.target is run_with_rng_state:
        _, drawn, *rest = node.args
        return _may_be_drawn(drawn, value_of(node), (rest, node.kwargs), device)
    if node.target is run_and_save_rng_state:
        value = value_of(node)
        assert isinstance(value, tuple)
        drawn, *rest = node.args
        return _may_be_drawn(drawn, value[1], (rest, node.kwargs), device)
    if not is_random(node) or not has_value(node):
        return False
    return _may_be_drawn(node.target, value_of(node), (node.args, node.kwargs), device)


def _may_be_drawn(drawn: object, value: object, arguments: object, device: str) -> bool:
    return drawing_rule_for(drawn) is not None and is_representable(value, arguments, device)


class _Writer:
    """Copies a graph node by node, giving streams to the nodes in `drawn`."""

    def __init__(self, drawn: Container[fx.Node]) -> None:
        self.drawn = drawn
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.recorded: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self.seed: fx.Node | None = None
        self.count = 0

    def copy(self, node: fx.Node) -> None:
        if node.target is operator.getitem and node.args[0] in self.recorded:
            source, position = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(position, int)
            self.copies[node] = self.recorded[source][position]
        elif node not in self.drawn:
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        elif node.target is run_with_rng_state:
            state, drawn, *rest = node.args
            assert isinstance(state, fx.Node)
            set_value(self.copies[state], _stream_value(value_of(node)))
            self.copies[node] = self.draw(node, drawn, tuple(rest), self.copies[state], value_of(node))
        elif node.target is run_and_save_rng_state:
            value = value_of(node)
            assert isinstance(value, tuple)
            stream = self.next_stream(value[1])
            drawn, *rest = node.args
            self.recorded[node] = (stream, self.draw(node, drawn, tuple(rest), stream, value[1]))
        else:
            stream = self.next_stream(value_of(node))
            self.copies[node] = self.draw(node, node.target, node.args, stream, value_of(node))

    def draw(
        self, node: fx.Node, drawn: object, arguments: tuple[Argument, ...], stream: fx.Node, value: object
    ) -> fx.Node:
        assert isinstance(drawn, OpOverload)
        args = fx.map_arg(arguments, self.copies.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self.copies.__getitem__)
        made = self.graph.create_node(
            "call_function", run_with_rng_state, (stream, drawn, *args), kwargs, name=node.name
        )
        copy_provenance(node, made)
        set_value(made, value)
        return made

    def next_stream(self, value: object) -> fx.Node:
        """The stream of the next operator, whose result is `value`."""
        like = _stream_value(value)
        if self.seed is None:
            self.seed = self.graph.call_function(random_seed)
            set_value(self.seed, like[0])
        stream = self.graph.call_function(random_stream, (self.seed, self.count))
        set_value(stream, like)
        self.count += 1
        return stream


def _stream_value(value: object) -> torch.Tensor:
    """The fake value of a stream."""
    tensor = value[0] if isinstance(value, tuple | list) else value
    assert isinstance(tensor, FakeTensor)
    with tensor.fake_mode:
        return torch.empty(2, dtype=torch.int64, device="cpu")


def seed_as_input(module: fx.GraphModule) -> fx.GraphModule:
    """Take the seed as one more input, the last, instead of drawing it; the same module if none is drawn.

    This is how a program draws random numbers without torch: the caller passes the seed.

    Before: ``def forward(x): random_seed = precast.random_seed(); …``
    After:  ``def forward(x, random_seed): …``
    """
    if not any(node.target is random_seed for node in module.graph.nodes):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in placeholders_of(module.graph):
        copies[node] = graph.node_copy(node)
    for node in module.graph.nodes:
        if node.target is random_seed:
            copies[node] = graph.placeholder(SEED_NAME)
            set_value(copies[node], value_of(node))
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)
