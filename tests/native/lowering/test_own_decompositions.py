"""Operators decomposed by rules of our own: each returns what torch's operator gives."""

import itertools

import pytest
import torch

from precast.native.decompositions.own import CHECKED_DECOMPOSITIONS, OWN_DECOMPOSITIONS
from tests.native.lowering.cases import floats

aten = torch.ops.aten

IMAGE, TANGENT = floats(2, 3, 6, 7), floats(2, 3, 4, 5, seed=1)
GRID = floats(2, 4, 5, 2, seed=2)
LEFT, RIGHT = floats(2, 4, 3), floats(2, 5, 3, seed=1)
CASES = {
    "addbmm": (aten.addbmm.default, [floats(3, 5), floats(2, 3, 4), floats(2, 4, 5)], {"beta": 0.5, "alpha": 2}),
    "addbmm_of_whole_numbers": (
        aten.addbmm.default,
        [torch.ones(3, 5, dtype=torch.int64), torch.ones(2, 3, 4).long(), torch.ones(2, 4, 5).long()],
        {"beta": 2, "alpha": 3},
    ),
    "addbmm_without": (
        aten.addbmm.default,
        [torch.full((3, 5), torch.nan), floats(2, 3, 4), floats(2, 4, 5)],
        {"beta": 0},
    ),
    "view_copy_of_what_is_transposed": (aten.view_copy.default, [floats(3, 4).t(), [6, 2]], {}),
    "trilinear": (
        aten._trilinear.default,
        [floats(2, 3), floats(4, 3, 5), floats(2, 5), [1, 3], [0], [1, 2], [2, 3]],
        {},
    ),
    "multi_margin": (
        aten.multi_margin_loss_backward.default,
        [torch.tensor(2.0), floats(4, 5), torch.tensor([0, 4, 2, 2]), 2, 0.5, floats(5).abs(), 1],
        {},
    ),
    "multi_margin_of_each": (
        aten.multi_margin_loss_backward.default,
        [floats(4, seed=3), floats(4, 5), torch.tensor([0, 4, 2, 2]), 1, 1.0, None, 0],
        {},
    ),
}
STEEP = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.3, -0.3, 2.0, -2.0, 0.5])
for beta, reduction in itertools.product((0.0, 0.5, 1.0), (0, 1, 2)):
    CASES[f"smooth_l1_{beta}_{reduction}"] = (
        aten.smooth_l1_loss_backward.default,
        [floats(10 if reduction == 0 else 1).squeeze(), STEEP, torch.zeros(10), reduction, beta],
        {},
    )
for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")):
    distances = torch.cdist(LEFT, RIGHT, p=p)
    CASES[f"cdist_{p}"] = (aten._cdist_backward.default, [floats(2, 4, 5), LEFT, RIGHT, p, distances], {})
    pairs = torch.pdist(LEFT[0], p=p)
    CASES[f"pdist_{p}"] = (aten._pdist_backward.default, [floats(6), LEFT[0], p, pairs], {})
for mode, padding, corners in itertools.product(range(3), range(3), (False, True)):
    CASES[f"grid_{mode}_{padding}_{corners}"] = (
        aten.grid_sampler_2d_backward.default,
        [TANGENT, IMAGE, GRID, mode, padding, corners, [True, True]],
        {},
    )
# Places that are no numbers; eager's gradients read outside of the image there, but where the padding is zeros.
NOWHERE = torch.cartesian_prod(*[torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3, -5.0])] * 2)[None, None]
for mode, padding in itertools.product(range(3), range(3)):
    arguments = [IMAGE[:1], NOWHERE, mode, padding, False]
    CASES[f"grid_of_nan_{mode}_{padding}"] = (aten.grid_sampler_2d.default, arguments, {})
    if padding == 0:
        gradient = torch.ones(1, IMAGE.shape[1], *NOWHERE.shape[1:3])
        operator = aten.grid_sampler_2d_backward.default
        CASES[f"grid_of_nan_backward_{mode}"] = (operator, [gradient, *arguments, [True, True]], {})


@pytest.mark.parametrize("name", CASES)
def test_the_parts_give_what_the_operator_gives(name):
    operator, arguments, choices = CASES[name]
    torch.testing.assert_close(
        OWN_DECOMPOSITIONS[operator](*arguments, **choices),
        operator(*arguments, **choices),
        rtol=1e-4,
        atol=1e-4,
        equal_nan=True,
    )


LABELS = torch.tensor([[1, 2, -1, 3], [0, -1, 2, 1], [3, 2, 1, 0], [-1, 1, 2, 3]])


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_losses_of_labels_up_to_the_first_negative_are_eagers(reduction):
    operator = aten.multilabel_margin_loss_forward.default
    for arguments in ((floats(4, 4), LABELS), (floats(4), LABELS[1]), (floats(4).fill_(torch.nan), LABELS[0])):
        ours, eager = OWN_DECOMPOSITIONS[operator](*arguments, reduction), operator(*arguments, reduction)
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_labels_up_to_the_first_negative_count():
    source, target = floats(4, 4), LABELS
    _, is_target = aten.multilabel_margin_loss_forward(source, target, 1)
    arguments = (torch.tensor(2.0), source, target, 1, is_target)
    operator = aten.multilabel_margin_loss_backward.default
    torch.testing.assert_close(OWN_DECOMPOSITIONS[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_unpooled_images_lie_as_the_pooled_ones(memory_format):
    pooled, places = torch.nn.functional.max_pool2d(floats(2, 3, 4, 6), 2, return_indices=True)
    arguments = (pooled.contiguous(memory_format=memory_format), places, [4, 6])
    operator = aten.max_unpool2d.default
    ours, eager = CHECKED_DECOMPOSITIONS[operator](*arguments), operator(*arguments)
    assert torch.equal(ours, eager)
    assert ours.stride() == eager.stride()


@pytest.mark.parametrize("ends", [(4.3, -3), (4.3, 50), (0, 7), (-5, 5)], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_whole_numbers_between_two_are_eagers(ends, steps):
    ours = OWN_DECOMPOSITIONS[aten.linspace.default](*ends, steps, dtype=torch.int64)
    assert torch.equal(ours, torch.linspace(*ends, steps, dtype=torch.int64))


@pytest.mark.parametrize("kinds", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_numbers_between_two_tensors_are_eagers(kinds, dtype):
    ends = [torch.tensor(value) if is_tensor else value for value, is_tensor in zip((4.3, -3), kinds, strict=True)]
    overload = "_".join("Tensor" if is_tensor else "Scalar" for is_tensor in kinds)
    ours = OWN_DECOMPOSITIONS[getattr(aten.linspace, overload)](*ends, 50, dtype=dtype)
    torch.testing.assert_close(ours, torch.linspace(*ends, 50, dtype=dtype))


@pytest.mark.parametrize("gradient", [torch.inf, torch.nan], ids=str)
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, torch.inf])
def test_infinite_gradients_of_distances_are_eagers(p, gradient):
    points, others = floats(4, 3), floats(5, 3)
    for operator, arguments in (
        (aten._pdist_backward.default, (torch.full((6,), gradient), points, p, torch.pdist(points, p))),
        (
            aten._cdist_backward.default,
            (torch.full((4, 5), gradient), points, others, p, torch.cdist(points, others, p)),
        ),
    ):
        torch.testing.assert_close(OWN_DECOMPOSITIONS[operator](*arguments), operator(*arguments), equal_nan=True)
