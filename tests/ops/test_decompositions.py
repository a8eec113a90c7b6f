"""Decomposition tables keep numbers and reach the sets they promise."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from precast.ops.decompositions import core_decompositions, default_decompositions

aten = torch.ops.aten


def test_core_ops_are_never_taken_apart():
    assert not [op for op in core_decompositions if torch.Tag.core in getattr(op, "tags", ())]


@pytest.mark.parametrize("op", [aten.mm.default, aten.convolution.default, aten.native_dropout.default])
def test_whole_ops_stay_whole(op):
    assert op not in default_decompositions


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.hardswish(x),
        lambda x: torch.nn.functional.elu(x),
        lambda x: x.masked_fill(x > 0, 2.0),
        lambda x: aten.gelu_backward(x, x + 1),
        lambda x: aten.silu_backward(x, x + 1),
    ],
)
def test_default_table_keeps_numbers(function):
    x = torch.randn(64)
    graph = make_fx(function, decomposition_table=default_decompositions)(x)
    torch.testing.assert_close(graph(x), function(x))
    assert not [node for node in graph.graph.nodes if node.target in default_decompositions]


def test_core_table_reaches_the_core_set():
    def function(x):
        return torch.nn.functional.hardswish(torch.addcmul(x, x, x)) + torch.nn.functional.silu(x)

    graph = make_fx(function, decomposition_table=core_decompositions)(torch.randn(8)).graph
    assert all(torch.Tag.core in node.target.tags for node in graph.nodes if node.op == "call_function")
