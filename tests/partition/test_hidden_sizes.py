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


def test_a_size_of_which_only_the_half_is_saved_is_saved_too():
    def function(x):
        return torch.nn.functional.avg_pool1d(torch.nn.functional.glu(x, -1).flatten(0, 1), 2, 1)

    x = torch.randn(3, 2, 2, 4, requires_grad=True)
    compiled = precast.compile(function, dynamic=True, fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(found, expected)
