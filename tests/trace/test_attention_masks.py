"""Masks of attention that no input decides: left out where they hide nothing, told as causal where they are."""

import pytest
import torch
import torch.nn.functional as F

import precast


def _everything() -> torch.Tensor:
    return (torch.arange(8)[None] >= 0)[None, None].expand(2, 1, 8, 8)


def _nothing_added() -> torch.Tensor:
    return torch.zeros(8, 1).expand(8, 8)


def _lower_triangle() -> torch.Tensor:
    places = torch.arange(8)
    return (places[:, None] >= places[None])[None, None].expand(2, -1, -1, -1)


def _minus_infinity_above() -> torch.Tensor:
    return torch.full((8, 8), float("-inf")).triu(1)


def _written_into() -> torch.Tensor:
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[2, 3] = False
    return mask


def _written_into_by_a_view() -> torch.Tensor:
    mask = torch.ones(8, 8, dtype=torch.bool)
    row = mask[3]
    row[:2].fill_(False)
    return mask


def _upper_triangle() -> torch.Tensor:
    return torch.ones(8, 8, dtype=torch.bool).triu()


CASES = {
    _everything: (None, False),
    _nothing_added: (None, False),
    _lower_triangle: (None, True),
    _minus_infinity_above: (None, True),
    _written_into: ("mask", False),
    _written_into_by_a_view: ("mask", False),
    _upper_triangle: ("mask", False),
}


@pytest.mark.parametrize("make", CASES, ids=lambda each: each.__name__.strip("_"))
def test_a_mask_is_told_by_what_it_hides(make):
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=make())

    x, graphs = torch.randn(2, 3, 8, 16), []
    compiled = precast.aot_function(attend, lambda graph, inputs: graphs.append(graph) or graph)
    torch.testing.assert_close(compiled(x), attend(x))
    (node,) = (each for each in graphs[0].graph.nodes if "flash_attention" in each.name)
    has_mask = node.kwargs.get("attn_mask") is not None
    assert (has_mask, node.args[4] if len(node.args) > 4 else False) == (CASES[make][0] is not None, CASES[make][1])


def test_a_mask_that_inputs_decide_stays():
    def attend(x, lengths):
        mask = torch.arange(8)[None] < lengths[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None].expand(2, 1, 8, 8))

    x, compiled = torch.randn(2, 3, 8, 16), precast.compile(attend, fullgraph=True)
    for lengths in ([8, 8], [3, 5]):
        torch.testing.assert_close(compiled(x, torch.tensor(lengths)), attend(x, torch.tensor(lengths)))


def test_gradients_without_the_mask_are_eagers():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=_lower_triangle())

    # In float32, eager and native code are each off by more than `assert_close` allows where scores are large.
    x = torch.randn(2, 3, 8, 16, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(precast.compile(attend)(x).square().sum(), x)
    (eagers,) = torch.autograd.grad(attend(x).square().sum(), x)
    torch.testing.assert_close(ours, eagers)


def test_a_mask_of_another_type_is_refused_as_in_eager():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(8, 8, dtype=torch.float64))

    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        precast.compile(attend, fullgraph=True)(torch.randn(2, 3, 8, 16))
