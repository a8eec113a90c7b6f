"""Operators over lists of tensors become operators of their own for each: optimizers run without torch."""

import pytest
import torch

import precast
from precast.native.decompositions.own import foreach_decompositions

aten = torch.ops.aten
LISTS = [
    [torch.rand(3, generator=torch.Generator().manual_seed(seed)) + 0.5, torch.rand(2, 2) + 0.5] for seed in range(3)
]
ONE, TWO, THREE = LISTS
CALLS = {
    aten._foreach_add.List: (ONE, TWO, {"alpha": 3}),
    aten._foreach_add.Scalar: (ONE, 2.0, {}),
    aten._foreach_sub.ScalarList: (ONE, [2.0, 3.0], {}),
    aten._foreach_mul.Tensor: (ONE, torch.tensor(3.0), {}),
    aten._foreach_div.List: (ONE, TWO, {}),
    aten._foreach_addcdiv.Scalar: (ONE, TWO, THREE, -0.1, {}),
    aten._foreach_addcmul.ScalarList: (ONE, TWO, THREE, [0.5, 2.0], {}),
    aten._foreach_lerp.Scalar: (ONE, TWO, 0.3, {}),
    aten._foreach_maximum.Scalar: (ONE, 0.7, {}),
    aten._foreach_minimum.List: (ONE, TWO, {}),
    aten._foreach_pow.ScalarAndTensor: (0.9, TWO, {}),
    aten._foreach_norm.Scalar: (ONE, 1, {}),
    aten._foreach_max.default: (ONE, {}),
    aten._foreach_sqrt.default: (ONE, {}),
    aten._foreach_zero.default: (ONE, {}),
    aten._foreach_copy.default: (ONE, TWO, {}),
}


@pytest.mark.parametrize("operator", CALLS, ids=str)
def test_each_tensor_gets_what_torch_gives_it(operator):
    *arguments, options = CALLS[operator]
    ours = foreach_decompositions()[operator](*arguments, **options)
    torch.testing.assert_close(list(ours), list(operator(*arguments, **options)))


def test_an_optimizer_over_lists_is_native_and_right():
    def step(parameters, gradients, means, squares):
        torch._foreach_lerp_(means, gradients, 0.1)
        torch._foreach_mul_(squares, 0.99)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
        spread = torch._foreach_sqrt(squares)
        torch._foreach_add_(spread, 1e-8)
        torch._foreach_addcdiv_(parameters, means, spread, -0.01)

    def fresh():
        return [[each.clone() for each in values] for values in (ONE, TWO, THREE, ONE)]

    ours, eager = fresh(), fresh()
    assert precast.explain(step, *ours).fallbacks == ()
    precast.compile(step)(*ours)
    step(*eager)
    torch.testing.assert_close(ours, eager)
