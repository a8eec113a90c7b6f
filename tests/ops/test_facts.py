"""Facts about ops, one example and one counterexample each."""

import pytest
import torch
from torch import fx

from precast.ops.facts import (
    is_compute_intensive,
    is_effectful,
    is_mutating,
    is_pure,
    is_random,
    is_reduction,
    is_view,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("fact", "holds_for", "not_for"),
    [
        (is_view, aten.view.default, aten.clone.default),
        (is_view, aten._unsafe_view.default, aten.add.Tensor),
        (is_view, aten.split.Tensor, aten.copy_.default),
        (is_random, aten.native_dropout.default, aten.native_dropout_backward.default),
        (is_random, aten.rand_like, aten.zeros_like),
        (is_mutating, aten.copy_.default, aten.copy.default),
        (is_effectful, aten._assert_scalar.default, aten.sin.default),
        (is_pure, aten.rand.default, aten.add_.Tensor),
        (is_compute_intensive, aten.mm.default, aten.gelu.default),
        (is_reduction, aten.sum.dim_IntList, aten.cumsum.default),
    ],
)
def test_fact(fact, holds_for, not_for):
    assert fact(holds_for)
    assert not fact(not_for)


def attention(dropout):
    graph = fx.Graph()
    q = graph.placeholder("q")
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    return graph.call_function(op, (q, q, q, dropout))


def test_attention_is_random_only_with_dropout():
    assert is_random(attention(0.1))
    assert not is_random(attention(0.0))


def test_placeholder_calls_no_op_and_is_pure():
    placeholder = fx.Graph().placeholder("x")
    assert is_pure(placeholder)
    assert not is_view(placeholder)


def test_control_flow_is_as_random_as_its_branches():
    inside = fx.Graph()
    inside.output((inside.call_function(aten.rand_like.default, (inside.placeholder("x"),)),))
    graph = fx.Graph()
    x, get = graph.placeholder("x"), graph.get_attr("branch")
    node = graph.call_function(torch.ops.higher_order.cond, (True, get, get, (x,)))
    graph.output(node)
    root = torch.nn.Module()
    root.branch = fx.GraphModule({}, inside)
    module = fx.GraphModule(root, graph)
    (copied,) = module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
    assert is_random(copied)
