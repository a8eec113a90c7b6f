"""Any optimizer, with any settings, over any of these: a compiled step is as near to float64 as eager's."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as draw

from tests.training.like_eager import Network, assert_as_exact_as_eager, batches

RATES = draw.floats(1e-4, 1e-1)
SHARES = draw.floats(0.5, 0.99)
DECAYS = draw.sampled_from([0.0, 0.01, 0.3])
OPTIMIZERS = {
    torch.optim.SGD: draw.fixed_dictionaries(
        {
            "lr": RATES,
            "momentum": draw.sampled_from([0.0, 0.5, 0.9]),
            "weight_decay": DECAYS,
            "maximize": draw.booleans(),
        }
    ),
    torch.optim.AdamW: draw.fixed_dictionaries(
        {"lr": RATES, "betas": draw.tuples(SHARES, SHARES), "weight_decay": DECAYS, "amsgrad": draw.booleans()}
    ),
    torch.optim.RMSprop: draw.fixed_dictionaries(
        {"lr": RATES, "alpha": SHARES, "momentum": draw.sampled_from([0.0, 0.5]), "centered": draw.booleans()}
    ),
    torch.optim.Adagrad: draw.fixed_dictionaries({"lr": RATES, "lr_decay": draw.sampled_from([0.0, 0.1])}),
}
SCHEDULES = [
    None,
    lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
]


@draw.composite
def trainings(data):
    kind = data(draw.sampled_from(list(OPTIMIZERS)))
    options = data(OPTIMIZERS[kind])
    second = data(draw.booleans())
    rate = data(RATES)

    def make(model):
        if not second:
            return kind(model.parameters(), **options)
        return kind([{"params": model.first.parameters()}, {"params": model.last.parameters(), "lr": rate}], **options)

    return {
        "make_optimizer": make,
        "grad_clip": data(draw.sampled_from([None, 0.1, 10.0])),
        "accumulate": data(draw.sampled_from([1, 2, 4])),
        "schedule": data(draw.sampled_from(SCHEDULES)),
        "skip_nonfinite": data(draw.booleans()),
    }


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(trainings(), draw.sampled_from([0.0, 0.3]))
def test_steps_with_random_settings_are_eagers(training, dropout):
    # Batch norm over two rows is all cancellation: of 32 rows, a quarter is enough.
    assert_as_exact_as_eager(Network(dropout), data=batches(5, rows=32), options={"random": "eager"}, **training)
