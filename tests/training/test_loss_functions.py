"""Loss functions that do more than to return a loss: as in eager, or refused by what they do."""

import pytest
import torch

import precast
from precast.errors import InputValueError
from tests.training.like_eager import Network, assert_like_eager, batches, loss_of


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def test_gradients_of_a_backward_in_the_loss_function_are_added():
    def loss_fn(model, x):
        for part in x[:6].chunk(3):
            loss_of(model.eval(), part).backward()
        return loss_of(model.eval(), x[6:])

    assert_like_eager(Network(), adam, loss_fn, steps=3, backend="nop")
    dampened = lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)  # noqa: E731
    assert_like_eager(Network(), dampened, loss_fn, steps=3, backend="nop")


def steps(model, optimizer, x):
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss_of(model, x)


def sets_the_learning_rate(model, optimizer, x):
    optimizer.param_groups[0]["lr"] = float("0.05")
    return loss_of(model, x)


def scales(model, optimizer, x):
    return torch.amp.GradScaler("cpu").scale(loss_of(model, x))


@pytest.mark.parametrize(
    ("function", "words"),
    [(steps, "calls the optimizer's step"), (sets_the_learning_rate, "changes 'lr'"), (scales, "with a GradScaler")],
)
def test_what_belongs_to_the_loop_is_refused_in_a_loss_function(function, words):
    model = Network()
    optimizer, (batch,) = adam(model), batches(1)
    before = optimizer.param_groups[0]["lr"]
    with pytest.raises(InputValueError, match=words):
        precast.train_step(model, lambda m, x: function(m, optimizer, x), optimizer, batch, backend="nop")
    assert optimizer.step.__name__ == "step"
    assert optimizer.param_groups[0]["lr"] == before


def test_results_that_a_loss_function_leaves_in_the_batch_are_refused():
    def leaving(model, batch):
        batch["loss"] = loss_of(model, batch["x"])
        return batch["loss"]

    def taking(model, batch):
        x = batch.pop("x")
        return loss_of(model, x)

    x, model = batches(1)[0], Network()
    with pytest.raises(InputValueError, match=r"writes batch\['loss'\]"):
        precast.train_step(model, leaving, adam(model), {"x": x}, backend="nop")
    step = precast.train_step(model, taking, adam(model), {"x": x}, backend="nop")
    assert step({"x": x}).isfinite()


def test_a_scaler_that_is_disabled_scales_nothing():
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert_like_eager(Network(), adam, lambda m, x: scaler.scale(loss_of(m, x)), steps=2, backend="nop")


def test_batches_through_which_gradients_would_flow_on_are_refused():
    model, encoder = Network(), torch.nn.Linear(4, 4)
    loss_fn = lambda model, x: loss_of(model, x)  # noqa: E731
    (batch,) = batches(1)
    step = precast.train_step(model, loss_fn, adam(model), batch, backend="nop")
    step(batch.clone().requires_grad_())
    for connected in (encoder(batch), model.first.weight):
        with pytest.raises(InputValueError, match="computed from parameters, or is one"):
            step(connected)


def test_memory_that_is_updated_and_shared_is_refused():
    """Each by the check of its own: when it is captured, and when something comes to overlap later."""
    model, (batch,) = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), batches(1, rows=4)
    loss_fn = lambda model, x: model(x).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, adam(model), batch, backend="nop")
    with pytest.raises(InputValueError, match=r"share memory.*model.0.weight, tensor 0 of the batch"):
        step(model[0].weight.detach())
    step(batch)
    model[1].weight.data = model[0].weight.data
    with pytest.raises(InputValueError, match=r"share memory.*model.0.weight, model.1.weight"):
        step(batch)
    with pytest.raises(InputValueError, match="shares memory"):
        precast.train_step(model, loss_fn, adam(model), batch, backend="nop")


def test_tensors_of_a_batch_that_the_loss_function_writes_do_not_overlap():
    model, (batch,) = torch.nn.Linear(4, 4), batches(1)
    loss_fn = lambda model, pair: (model(pair[0].mul_(2)) - pair[1]).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, adam(model), (batch.clone(), batch.clone()), backend="nop")
    with pytest.raises(InputValueError, match="tensor 0 of the batch, tensor 1 of the batch"):
        step((batch, batch))


def test_batches_whose_memory_holds_other_numbers_are_refused():
    model, (batch,) = Network(), batches(1)
    step = precast.train_step(model, loss_of, adam(model), batch, backend="nop")
    with pytest.raises(InputValueError, match="lazily negated"):
        step(torch.complex(batch, batch).conj().imag)


def test_tensors_of_other_lengths_are_not_accumulated_over():
    model, (batch,) = Network(), batches(1)
    loss_fn = lambda model, pair: (model(pair[0]) * pair[1]).square().mean()  # noqa: E731
    with pytest.raises(InputValueError, match="Tensors of 2 and 8 rows"):
        precast.train_step(model, loss_fn, adam(model), (batch, torch.ones(2)), accumulate=2, backend="nop")
