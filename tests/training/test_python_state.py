"""What models, loss functions and optimizers keep in Python: followed, or refused, and never forgotten."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import precast
from precast.errors import InputValueError, StateMutationError
from tests.training.like_eager import Network, assert_like_eager, batches, eager_step, loss_of

sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731


class Counting(Network):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) / self.calls


class StartsFromData(Network):
    def forward(self, x):
        if not getattr(self, "ready", False):
            with torch.no_grad():
                self.first.weight.mul_(x.std())
            self.ready = True
        return super().forward(x)


class NotesSizes(Network):
    def forward(self, x):
        self.rows, self.share = x.shape[0], 1 / 8
        return super().forward(x) * self.rows * self.share


def test_models_that_start_from_their_first_batch_make_their_first_step_in_torch():
    step = assert_like_eager(StartsFromData(), sgd, steps=3, backend="nop")
    assert sum(map(len, step._variants.values())) == 1
    model = StartsFromData()
    step = precast.train_step(model, loss_of, sgd(model), batches(1)[0], backend="nop")
    assert not getattr(model, "ready", False)
    with pytest.raises(InputValueError, match="begins with its first step"):
        step.save("never.precast")


def test_the_step_that_follows_a_first_one_is_compiled_before_both():
    model = StartsFromData()
    step = precast.train_step(model, loss_of, sgd(model), batches(1)[0], backend="nop")
    for batch in batches(3):
        step(batch)
    assert step._compilations == 1


@pytest.mark.parametrize("shapes", [None, {0: precast.Dim("rows", min=2)}])
def test_what_is_written_anew_before_it_is_read_is_no_state(shapes):
    data = [*batches(2), *batches(1, rows=5)]
    assert_like_eager(NotesSizes(), sgd, data=data, dynamic_shapes=shapes, backend="nop")


def counting_loss(counts):
    def loss_fn(model, x):
        counts["steps"] = counts.get("steps", 0) + 1
        return loss_of(model, x) / counts["steps"]

    return loss_fn


def measuring_loss(found):
    def loss_fn(model, x):
        found.append(1)
        return loss_of(model, x) / len(found)

    return loss_fn


class CountsInDict(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.counts = {"steps": 0}

    def step(self, closure=None):
        self.counts["steps"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.counts["steps"])
        super().step(closure)


@pytest.mark.parametrize(
    ("model", "make_optimizer", "loss_fn", "words"),
    [
        (Counting(), sgd, loss_of, "model.calls was 1, is 2"),
        (Network(), sgd, counting_loss({}), "'steps'] was 1, is 2"),
        (Network(), sgd, measuring_loss([]), "had 1 items, has 2"),
        (Network(), lambda model: CountsInDict(model.parameters()), loss_of, "'steps'] was 1, is 2"),
    ],
    ids=["model", "loss", "list", "optimizer"],
)
def test_counts_in_python_are_refused_by_their_place(model, make_optimizer, loss_fn, words):
    optimizer = make_optimizer(model)
    before = dict(vars(model)), getattr(optimizer, "counts", {}).copy()
    with pytest.raises(StateMutationError) as raised:
        precast.train_step(model, loss_fn, optimizer, batches(1)[0], backend="nop")
    assert words in str(raised.value)
    assert (dict(vars(model)), getattr(optimizer, "counts", {})) == before


def test_what_is_only_noted_is_no_state():
    losses = []

    def loss_fn(model, x):
        losses.append("step")
        return loss_of(model, x)

    assert_like_eager(Network(), sgd, loss_fn, steps=2, backend="nop")


class Limited(torch.optim.SGD):
    """Reads attributes of its own, of its class, of what it holds, and is another one in its first step."""

    top = 1.0

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.trust, self.limits, self.is_first = 1.0, {"top": 1.0}, True

    def step(self, closure=None):
        scale = self.trust * self.limits["top"] * self.top * self.defaults.get("scale", 1.0)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(scale * (2.0 if self.is_first else 1.0))
        self.is_first = False
        super().step(closure)


def test_what_an_optimizer_reads_may_change(monkeypatch):
    own, eager = Network(), Network()
    optimizers = [Limited(each.parameters()) for each in (own, eager)]
    changes = [
        lambda optimizer: None,
        lambda optimizer: setattr(optimizer, "trust", 0.5),
        lambda optimizer: optimizer.limits.update(top=0.5),
        lambda optimizer: monkeypatch.setattr(Limited, "top", 0.5),
        lambda optimizer: optimizer.defaults.update(scale=2.0),
        lambda optimizer: setattr(optimizer, "limits", {"top": 3.0}),
    ]
    step = precast.train_step(own, loss_of, optimizers[0], batches(1)[0], backend="nop")
    for change in changes:
        for each in optimizers:
            change(each)
        for batch in batches(2):
            step(batch)
            eager_step(eager, loss_of, optimizers[1], batch)
        for one, other in zip(own.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers_step_as_in_eager(kind):
    assert_like_eager(Network(), lambda model: kind(model.parameters(), lr=0.1, fused=True), backend="nop")


def hook_around_steps(model, optimizer):
    optimizer.register_step_post_hook(lambda *_: None)


def hook_on_a_gradient(model, optimizer):
    model.last.weight.register_hook(lambda gradient: gradient * 2)


def another_step(model, optimizer):
    optimizer.step = lambda closure=None: None


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (hook_around_steps, "hooks around its steps"),
        (hook_on_a_gradient, "hook on its gradient"),
        (another_step, "was exchanged for another function"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_code_around_steps_is_refused_whenever_it_comes(change, words, is_late):
    model = Network()
    optimizer = sgd(model)
    if not is_late:
        change(model, optimizer)
        with pytest.raises(InputValueError, match=words):
            precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop")
        return
    step = precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop")
    StepLR(optimizer, 2)
    step(batches(1)[0])
    change(model, optimizer)
    with pytest.raises(InputValueError, match=words):
        step(batches(1)[0])
