"""Steps of a training loop as people write it, beside compiled ones: all that there is is compared after each."""

import copy

import torch

import precast


class Network(torch.nn.Module):
    """All its parameters have gradients that are more than roundings: optimizers divide by them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(4, 6, bias=False), torch.nn.BatchNorm1d(6)
        self.drop, self.last = torch.nn.Dropout(dropout), torch.nn.Linear(6, 2, bias=False)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def batches(count, rows=8):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 4, generator=generator) for _ in range(count)]


def loss_of(model, x):
    return torch.nn.functional.mse_loss(model(x), x[:, :2].sin())


def eager_step(model, loss_fn, optimizer, batch, *, grad_clip=None, accumulate=1):
    optimizer.zero_grad()
    losses = []
    for part in batch.chunk(accumulate):
        loss = loss_fn(model, part)
        (loss / accumulate).backward()
        losses.append(loss.detach())
    if grad_clip is not None:
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], grad_clip)
    optimizer.step()
    return torch.stack(losses).mean()


def assert_same_training(one, other, tolerance):
    """Compare models and optimizers, each as a pair."""
    for (name, expected), found in zip(one[0].state_dict().items(), other[0].state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
    expected, found = one[1].state_dict(), other[1].state_dict()
    assert expected["param_groups"] == found["param_groups"]
    assert expected["state"].keys() == found["state"].keys()
    for number, state in expected["state"].items():
        assert state.keys() == found["state"][number].keys()
        for name, value in state.items():
            torch.testing.assert_close(found["state"][number][name], value, rtol=10 * tolerance, atol=tolerance)


def assert_like_eager(
    model,
    make_optimizer,
    loss_fn=loss_of,
    *,
    steps=6,
    tolerance=2e-6,
    schedule=None,
    data=None,
    seeded=False,
    **settings,
):
    """Train two copies of a model, one of them compiled, and compare them step by step; returns the compiled step."""
    own, eager = copy.deepcopy(model), model
    optimizer, eager_optimizer = make_optimizer(own), make_optimizer(eager)
    data = data or batches(steps)
    told = {name: settings[name] for name in ("grad_clip", "accumulate") if name in settings}
    step = precast.train_step(own, loss_fn, optimizer, data[0], **settings)
    schedules = [schedule(each) for each in (optimizer, eager_optimizer)] if schedule else []
    for number, batch in enumerate(data):
        if seeded:
            torch.manual_seed(number)
        expected = eager_step(eager, loss_fn, eager_optimizer, batch, **told)
        if seeded:
            torch.manual_seed(number)
        found = step(batch)
        for each in schedules:
            each.step()
        torch.testing.assert_close(found, expected, rtol=10 * tolerance, atol=tolerance)
        assert_same_training((eager, eager_optimizer), (own, optimizer), tolerance)
    return step


def assert_as_exact_as_eager(model, make_optimizer, loss_fn=loss_of, *, data, schedule=None, factor=8, **settings):
    """Train compiled, in eager, and in eager with float64: errors are those of eager, times a small factor.

    Where gradients are all cancellation, or optimizers divide by what is nearly nothing, two correct float32
    trajectories part by more than any fixed tolerance.
    """
    own, eager, exact = (copy.deepcopy(model) for _ in range(3))
    exact = exact.double()
    optimizers = [make_optimizer(each) for each in (own, eager, exact)]
    schedules = [schedule(each) for each in optimizers] if schedule else []
    told = {name: settings[name] for name in ("grad_clip", "accumulate") if name in settings}
    step = precast.train_step(own, loss_fn, optimizers[0], data[0], **settings)
    for number, batch in enumerate(data):
        torch.manual_seed(number)
        step(batch)
        for each, optimizer, part in ((eager, optimizers[1], batch), (exact, optimizers[2], batch.double())):
            torch.manual_seed(number)
            eager_step(each, loss_fn, optimizer, part, **told)
        for each in schedules:
            each.step()
        allowed = factor * _distance(eager, exact) + 1e-6
        assert _distance(own, exact) <= allowed, f"step {number}: {_distance(own, exact)} from float64, {allowed=}"


def _distance(model, exact):
    pairs = zip(model.state_dict().values(), exact.state_dict().values(), strict=True)
    return max((one.double() - other).abs().max().item() for one, other in pairs)
