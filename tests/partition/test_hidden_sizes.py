"""The backward is given every size that it speaks of."""

import torch

import precast


def test_sizes_of_which_only_the_product_is_saved_are_saved_too():
    def function(x, weight):
        return x.flatten().sin() @ weight

    x, weight = torch.randn(3, 4), torch.randn(12, 1, requires_grad=True)
    compiled = precast.compile(function, dynamic=True, fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x, weight).sum(), weight)
    (expected,) = torch.autograd.grad(function(x, weight).sum(), weight)
    torch.testing.assert_close(found, expected)
