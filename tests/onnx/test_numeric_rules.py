"""Rules whose results torchlib's lose: digits of float64, small terms, draws without replacement."""

import pytest
import torch
from torch.nn import functional

from precast.onnx import export

AUTO = torch.export.Dim.AUTO


def assert_same(model, *args: torch.Tensor, tolerance: float = 1e-12) -> None:
    (result,) = export(model, args)(*args)
    torch.testing.assert_close(result, model(*args), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "model",
    [
        torch.deg2rad,
        torch.log2,
        torch.log10,
        lambda x: torch.full_like(x, 0.1),
        lambda x: x.index_fill(0, torch.tensor([0]), 0.1),
        lambda x: torch.addmm(x, x, x, beta=0.2),
        lambda x: torch.addmv(x[0], x, x[0], beta=0.2),
        lambda x: torch.addr(x, x[0], x[1], beta=0.2),
        lambda x: functional.hinge_embedding_loss(x, x.sign(), margin=0.3),
    ],
)
def test_numbers_keep_the_digits_of_float64(model):
    assert_same(model, torch.rand(3, 3, dtype=torch.float64) + 0.5)


def test_what_is_multiplied_by_zero_is_not_read():
    x, y = torch.full((3, 3), torch.nan), torch.rand(2, 3, 3)
    assert_same(lambda x, y: torch.baddbmm(x.expand(2, 3, 3), y, y, beta=0), x, y, tolerance=1e-5)
    assert_same(lambda x, y: torch.addmm(x, y[0], y[1], beta=0), x, y, tolerance=1e-5)


def test_running_sums_of_exponentials_keep_terms_far_below_the_largest():
    assert_same(lambda x: x.logcumsumexp(0), torch.tensor([-200.0, -100.0, 0.0, 5.0]), tolerance=1e-6)


def test_draws_without_replacement_are_distinct():
    weights = torch.tensor([1.0, 0.0, 1.0, 2.0])
    program = export(lambda x: torch.multinomial(x, 3), (weights,))
    assert all(sorted(program(weights)[0].tolist()) == [0, 2, 3] for _ in range(5))
    assert program.model.graph.outputs[0].shape == (3,)


def test_targets_behind_the_first_minus_one_do_not_count():
    target = torch.tensor([[0, 1, -1, 2, 3]] * 2)
    assert_same(lambda x: functional.multilabel_margin_loss(x, target), torch.rand(2, 5), tolerance=1e-6)


@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d])
def test_adaptive_pooling_follows_dynamic_sizes(pool):
    program = export(lambda x: pool(x, (3, 2)), (torch.rand(1, 2, 6, 8),), dynamic_shapes=({2: AUTO, 3: AUTO},))
    for size in ((9, 5), (2, 3), (4, 1)):
        x = torch.rand(1, 2, *size)
        torch.testing.assert_close(program(x)[0], pool(x, (3, 2)))


def test_pooling_of_one_dimension_keeps_its_length_dynamic():
    pool = torch.nn.MaxPool1d(3, 2, 1)
    program = export(pool, (torch.rand(2, 3, 8),), dynamic_shapes=({2: AUTO},))
    x = torch.rand(2, 3, 11)
    torch.testing.assert_close(program(x)[0], pool(x))


def test_powers_and_rolls_take_symbolic_sizes():
    def model(x):
        n = x.shape[0]
        return (x.abs() ** n).roll(n // 2, 0) * 2.0 + n**x

    program = export(model, (torch.rand(4, 2),), dynamic_shapes=({0: AUTO},))
    x = torch.rand(7, 2)
    torch.testing.assert_close(program(x)[0], model(x))


def test_numbers_read_from_tensors_are_computed_with():
    def model(x, scale):
        return x.clamp(max=scale.item() / 10) * (scale.item() + 1)

    assert_same(model, torch.rand(3), torch.tensor(3.0), tolerance=1e-6)
