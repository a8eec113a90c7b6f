"""Several entries of one file share weights and state."""

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.packaging.calls import exported_entries


class TrainStep(torch.nn.Module):
    """One step of gradient descent on a linear model, written out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        error = self.model(x) - y
        with torch.no_grad():
            self.model.weight.sub_(0.1 * 2 * error.t() @ x / x.shape[0])
        return (error**2).mean()


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1, bias=False).requires_grad_(False)


@pytest.fixture(scope="module")
def path(linear, tmp_path_factory):
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    entries = {
        "forward": precast.export(linear, (x,)),
        "train_step": (TrainStep(linear), (x, y)),
        "one_row": (linear, (x[:1],)),
    }
    return precast.package(entries, path=tmp_path_factory.mktemp("entries") / "model.precast")


def test_entries_share_one_set_of_weights(path, linear):
    model = precast.runtime.load(path)
    assert model.entries == ("forward", "train_step", "one_row")
    assert list(model.state) == ["weight"]
    x = torch.randn(8, 3)
    torch.testing.assert_close(model(x), linear(x))
    torch.testing.assert_close(model["one_row"](x[:1]), linear(x[:1]))


def test_what_one_entry_updates_the_others_see(path, linear):
    model, before = precast.runtime.load(path), linear.weight.clone()
    x = torch.randn(8, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    losses = [float(model["train_step"](x, y)) for _ in range(300)]
    assert losses[-1] < 1e-3 * losses[0]
    torch.testing.assert_close(model(x), y, atol=0.1, rtol=0.1)
    assert torch.equal(linear.weight, before)


def test_state_can_be_written_and_is_checked(path, linear):
    model = precast.runtime.load(path)
    model.state["weight"] = np.zeros((1, 3), np.float32)
    assert model(torch.randn(8, 3)).abs().max() == 0
    with pytest.raises(ValueError, match="dimension 1 is 2, expected 3"):
        model.state["weight"] = np.zeros((1, 2), np.float32)
    with pytest.raises(precast.errors.InputValueError, match="no state 'bias'"):
        model.state["bias"] = np.zeros(1)
    with pytest.raises(KeyError):
        model.state["bias"]
    with pytest.raises(precast.errors.InputValueError, match="cannot be removed"):
        del model.state["weight"]


def test_an_unknown_entry_is_named_with_those_there_are(path):
    with pytest.raises(KeyError, match="'eval'; it has forward, train_step, one_row"):
        precast.runtime.load(path)["eval"]


def test_each_entry_has_its_program(path):
    model = precast.runtime.load(path, allow_native=False)
    x = torch.randn(8, 3)
    y = torch.randn(8, 1)
    before = model(x)
    native = precast.runtime.load(path)
    for each in (model, native):
        each["train_step"](x, y)
    torch.testing.assert_close(model(x), native(x))
    assert not torch.equal(model(x), before)


def test_equal_names_of_different_tensors_are_told_apart(tmp_path):
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    x = torch.randn(1, 2)
    path = precast.package({"a": (first, (x,)), "b": (second, (x,))}, path=tmp_path / "m.precast")
    model = precast.runtime.load(path)
    assert list(model.state) == ["weight", "bias", "b.weight", "b.bias"]
    torch.testing.assert_close(model["a"](x), first(x))
    torch.testing.assert_close(model["b"](x), second(x))
    torch.testing.assert_close(model(x), first(x))


def test_dropout_draws_from_the_seed_in_the_state(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5)).train()
    x = torch.ones(16, 4)
    path = precast.package(module, (x,), path=tmp_path / "m.precast")
    model = precast.runtime.load(path)
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6
    assert model.state["random.seed"] == 2
    model.state["random.seed"] = 0
    assert torch.equal(model(x), first)
    assert torch.equal(precast.runtime.load(path)(x), first)
    assert model.verify() == ()


def test_a_tensor_that_is_called_like_the_seed_is_refused(tmp_path):
    class Clashing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.random = torch.nn.Module()
            self.random.register_buffer("seed", torch.tensor(1.0))

        def forward(self, x):
            return torch.nn.functional.dropout(x, 0.5) * self.random.seed

    with pytest.raises(precast.errors.InputValueError, match=r"of its own called 'random\.seed'"):
        precast.package(Clashing(), (torch.ones(2),), path=tmp_path / "m.precast")


def test_equal_copies_under_one_name_are_stored_once(tmp_path):
    x = torch.randn(1, 2)
    first = precast.export(torch.nn.Linear(2, 2), (x,))
    precast.save(first, tmp_path / "program.pt2")
    second = precast.load(tmp_path / "program.pt2")
    path = precast.package({"a": first, "b": second}, path=tmp_path / "m.precast")
    model = precast.runtime.load(path)
    assert list(model.state) == ["weight", "bias"]
    assert torch.equal(model["a"](x), model["b"](x))


@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.RNN, torch.nn.LSTM])
def test_recurrent_layers_take_any_number_of_steps_where_gradients_are_on(layer):
    dynamic = ({1: precast.Dim("time", min=1, max=40)},)
    module, x = layer(3, 4, batch_first=True), torch.randn(2, 5, 3)
    (exported,) = exported_entries(module, (x,), None, dynamic).values()
    for steps in (1, 7):
        x = torch.randn(2, steps, 3)
        torch.testing.assert_close(exported.module()(x)[0], module(x)[0])
