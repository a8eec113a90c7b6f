"""Tensors in Python's state: those that a step reads may be replaced, and those that it leaves there are there."""

import pytest
import torch
from torch import nn

import precast
from precast.errors import StateMutationError
from tests.training.like_eager import Network, assert_like_eager, assert_same_training, batches, eager_step, loss_of

sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731


class Scaled(Network):
    """Reads a tensor that is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(2.0)

    def forward(self, x):
        return super().forward(x) * self.scale


def test_tensors_that_a_step_reads_may_be_replaced():
    weights = {"loss": torch.tensor(1.0)}
    weighted = lambda model, x: loss_of(model, x) * weights["loss"]  # noqa: E731
    own, eager = Scaled(), Scaled()
    optimizers = sgd(own), sgd(eager)
    (batch,) = batches(1)
    step = precast.train_step(own, weighted, optimizers[0], batch, backend="nop")
    for scale, weight in ((2.0, 1.0), (3.0, 1.0), (3.0, 0.5)):
        own.scale, eager.scale, weights["loss"] = torch.tensor(scale), torch.tensor(scale), torch.tensor(weight)
        torch.testing.assert_close(step(batch), eager_step(eager, weighted, optimizers[1], batch))
    assert sum(map(len, step._variants.values())) == 1


class Keeping(Network):
    """Keeps hidden values, and losses that the loss function adds: of experts, say."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        self.losses.clear()
        self.hidden = self.first(x)
        self.losses.append(self.hidden.square().mean())
        return super().forward(x)


@pytest.mark.parametrize("settings", [{}, {"skip_nonfinite": True, "grad_clip": 0.5}], ids=["plain", "skipping"])
def test_what_a_step_stores_is_there_after_each(settings):
    history, own, eager = [], Keeping(), Keeping()

    def loss_fn(model, x):
        loss = loss_of(model, x) + sum(model.losses)
        history.append(loss.detach())
        return loss

    optimizers = sgd(own), sgd(eager)
    data = batches(3)
    step = precast.train_step(own, loss_fn, optimizers[0], data[0], backend="nop", **settings)
    assert not history
    for batch in data:
        expected = eager_step(eager, loss_fn, optimizers[1], batch, grad_clip=settings.get("grad_clip"))
        torch.testing.assert_close(step(batch), expected)
        torch.testing.assert_close(history[-1], history[-2])
        torch.testing.assert_close(own.hidden, eager.hidden.detach())
        torch.testing.assert_close(own.losses, [each.detach() for each in eager.losses])
    assert len(history) == 6


class Recurrent(Network):
    def __init__(self):
        super().__init__()
        self.before = torch.zeros(8, 2)

    def forward(self, x):
        found = super().forward(x) + self.before
        self.before = found.detach()
        return found


class FillsAnEmptyBuffer(Network):
    def __init__(self):
        super().__init__()
        self.register_buffer("found", None)

    def forward(self, x):
        self.found = super().forward(x)
        return self.found


@pytest.mark.parametrize(("kind", "words"), [(Recurrent, "model.before"), (FillsAnEmptyBuffer, "model.found")])
def test_tensors_that_the_next_step_would_read_are_refused_by_their_place(kind, words):
    model = kind()
    with pytest.raises(StateMutationError, match=words):
        precast.train_step(model, loss_of, sgd(model), batches(1)[0], backend="nop")


class Masking(Network):
    mask = None

    def forward(self, x):
        if self.mask is None or len(self.mask) < len(x):
            self.mask = torch.arange(len(x))[:, None] % 2
        return super().forward(x) * self.mask[: len(x)]


def test_tensors_that_are_made_once_are_made_by_a_first_step_in_torch():
    data = [*batches(2), *batches(1, rows=4), *batches(1, rows=12), *batches(1)]
    assert_like_eager(Masking(), sgd, data=data, backend="nop")


def test_weights_that_hooks_set_are_computed_in_each_step():
    def made():
        torch.manual_seed(0)
        with pytest.warns(FutureWarning):
            layer = nn.utils.weight_norm(nn.Linear(4, 4))
        return nn.Sequential(layer, nn.Tanh(), nn.utils.spectral_norm(nn.Linear(4, 2)))

    own, eager = made(), made()
    optimizers = sgd(own), sgd(eager)
    step = precast.train_step(own, loss_of, optimizers[0], batches(1)[0], backend="nop")
    for batch in batches(2):
        torch.testing.assert_close(step(batch), eager_step(eager, loss_of, optimizers[1], batch))
        assert_same_training((eager, optimizers[1]), (own, optimizers[0]), 1e-6)
    torch.testing.assert_close(own[0].weight, eager[0].weight.detach())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_embeddings_have_dense_gradients(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Linear(6, 11))
    data = [torch.randint(11, (8,)) for _ in range(3)]
    loss_fn = lambda model, x: nn.functional.cross_entropy(model(x), x)  # noqa: E731
    assert_like_eager(model, lambda model: kind(model.parameters(), lr=0.1), loss_fn, data=data, backend="nop")


def test_a_file_stores_nothing(tmp_path):
    model = Keeping()
    (batch,) = batches(1)
    step = precast.train_step(model, lambda model, x: loss_of(model, x) + sum(model.losses), sgd(model), batch)
    step(batch)
    loaded = precast.runtime.load(step.save(tmp_path / "model.precast"))
    found = loaded["train_step"](batch.numpy())
    torch.testing.assert_close(torch.as_tensor(found), step(batch))
    torch.testing.assert_close(model.losses, [model.hidden.square().mean()])
