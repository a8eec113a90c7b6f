"""Bags of embeddings and their gradients."""

import itertools

import pytest
import torch

from tests.native.lowering.cases import check_case, floats, open_cases

INDICES = torch.tensor([1, 4, 4, 0, 6, 2, 2])
OFFSETS = torch.tensor([0, 2, 2, 5])  # the second bag is empty
ENDING = torch.tensor([0, 2, 2, 5, 7])
WEIGHT = floats(7, 5)


def bag(mode, **choices):
    def function(weight, indices, offsets, tangent, *scales):
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (weight, *scales)]
            more = {"per_sample_weights": leaves[1]} if scales else {}
            result = torch.nn.functional.embedding_bag(indices, leaves[0], offsets, mode=mode, **more, **choices)
            return result.detach(), *torch.autograd.grad(result, leaves, tangent)

    return function


TANGENT = floats(4, 5, seed=1)
CHOICES = {"plain": {}, "padded": {"padding_idx": 4}}
CASES = {
    f"{mode}_{name}": (bag(mode, **choices), [WEIGHT, INDICES, OFFSETS, TANGENT])
    for mode, (name, choices) in itertools.product(("sum", "mean"), CHOICES.items())
}
CASES |= {
    "max": (bag("max"), [WEIGHT, INDICES, OFFSETS, TANGENT]),
    "max_padded": (bag("max", padding_idx=4), [WEIGHT, INDICES, OFFSETS, TANGENT]),
    "ending": (bag("mean", include_last_offset=True), [WEIGHT, INDICES, ENDING, TANGENT]),
    "scaled": (bag("sum"), [WEIGHT, INDICES, OFFSETS, TANGENT, floats(7, seed=2)]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    by_use = {"by_use": (bag("mean", scale_grad_by_freq=True), [WEIGHT, INDICES, OFFSETS, TANGENT])}
    return open_cases(CASES | by_use, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_bags_and_gradients_are_eagers(model, name):
    check_case(model, name, CASES[name], sums=True)


def test_a_row_that_is_not_there_raises(model):
    with pytest.raises(RuntimeError, match="num_embeddings"):
        model["sum_plain"](WEIGHT, INDICES + 1, OFFSETS, TANGENT)


def test_gradients_are_divided_by_how_often_a_row_is_used(model):
    """Eager on the CPU looks up the counts of other rows, so it is no reference here."""
    inputs = [WEIGHT, INDICES, OFFSETS, TANGENT]
    scaled, plain = (model[name](*inputs)[1] for name in ("by_use", "mean_plain"))
    uses = torch.bincount(INDICES, minlength=7).clamp_min(1)
    torch.testing.assert_close(scaled, plain / uses[:, None])
