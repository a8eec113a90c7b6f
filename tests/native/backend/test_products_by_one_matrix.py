"""Batches of products by one matrix become single products, and nothing else does."""

import pytest
import torch

import precast
from precast.native.graph_passes.products_by_one_matrix import merge_products
from tests.native.lowering.pipeline import trace


def products(module):
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    return [name.split(".")[1] for name in names if name in ("aten.mm.default", "aten.bmm.default")]


@pytest.mark.thinned
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 3, 5, 4), (1, 5, 4)])
def test_a_matrix_that_is_expanded_is_multiplied_by_once(shape, turned):
    x, weight = torch.randn(shape), torch.randn(6, 4)
    x = x.transpose(0, -2).contiguous().transpose(0, -2) if turned else x

    def function(x, weight):
        batch = x.shape[:-2]
        matrices = weight.t().expand(*batch, 4, 6).reshape(-1, 4, 6)
        return torch.bmm(x.reshape(-1, *x.shape[-2:]), matrices).reshape(*x.shape[:-1], 6)

    module = trace(function, [x, weight])
    merged = merge_products(module)
    assert products(merged) == (["bmm"] if shape[0] == 1 else ["mm"])
    result = merged(x, weight)
    torch.testing.assert_close(result, function(x, weight))
    assert result.stride() == function(x, weight).stride()


def test_other_batches_stay_as_they_are():
    module = trace(torch.bmm, [torch.randn(3, 5, 4), torch.randn(3, 4, 6)])
    assert merge_products(module) is module
    module = trace(lambda x, y: torch.bmm(y.expand(3, 5, 4), x), [torch.randn(3, 4, 6), torch.randn(5, 4)])
    assert merge_products(module) is module


def test_sizes_may_be_dynamic():
    layer = torch.nn.Linear(4, 6).requires_grad_(False)
    compiled = precast.compile(lambda x: layer(x.transpose(0, 1)), dynamic=True)
    for shape in ((3, 5, 4), (7, 2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), layer(x.transpose(0, 1)))
