"""A compiled step is the training loop that people write: parameters, buffers, optimizer state, step by step."""

import random
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import precast
from precast.errors import InputTypeError, InputValueError
from tests.autograd.optimizer_settings import quick_settings
from tests.training.like_eager import (
    Network,
    assert_like_eager,
    assert_same_training,
    batches,
    eager_step,
    loss_of,
)

_MATRICES_ONLY, _COARSE = {"Muon"}, {"Adafactor", "Rprop"}
SETTINGS = [each for each in quick_settings() if each.kind.__name__ not in _MATRICES_ONLY]


def of(kind, **options):
    return lambda model: kind(model.parameters(), **options)


@pytest.mark.parametrize(
    "make",
    [
        of(torch.optim.RMSprop, lr=1e-2, momentum=0.5, centered=True),
        of(torch.optim.Adagrad, lr=1e-2, initial_accumulator_value=0.1),
        of(torch.optim.AdamW, lr=1e-2, amsgrad=True, foreach=True),
        of(torch.optim.Adam, lr=1e-2, fused=True),
    ],
    ids=["rmsprop", "adagrad", "adamw", "adam"],
)
def test_optimizers_step_as_in_eager(make):
    assert_like_eager(Network(), make, steps=3, backend="nop")


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_optimizer_steps_as_in_eager(setting):
    tolerance = 1e-4 if setting.kind.__name__ in _COARSE else 2e-6
    make = lambda model: setting.make(list(model.parameters()))  # noqa: E731
    assert_like_eager(Network(), make, steps=3, tolerance=tolerance, backend="nop")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (of(torch.optim.AdamW, lr=1e-2), {"grad_clip": 0.1, "accumulate": 2}),
        pytest.param(
            of(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), {"grad_clip": 0.5}, marks=pytest.mark.slow
        ),
    ],
    ids=["adamw", "sgd"],
)
def test_hundred_native_steps_are_eagers(make, settings):
    schedule = lambda optimizer: CosineAnnealingLR(optimizer, 100)  # noqa: E731
    step = assert_like_eager(
        Network(dropout=0.2),
        make,
        data=batches(100),
        tolerance=2e-5,
        schedule=schedule,
        seeded=True,
        options={"random": "eager"},
        **settings,
    )
    assert len(step._variants) == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_momentum_that_is_cycled_is_compiled_for_once(kind):
    options = {"momentum": 0.9, "weight_decay": 0.1} if kind is torch.optim.SGD else {}
    schedule = lambda optimizer: OneCycleLR(optimizer, 1e-2, total_steps=20)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = assert_like_eager(Network(), of(kind, lr=1e-2, **options), steps=6, schedule=schedule, backend="nop")
    assert len(step._variants) == 1


def test_groups_have_their_own_settings():
    def make(model):
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters(), "lr": 1e-3, "eps": 1e-6}]
        return torch.optim.Adam(groups, lr=1e-2)

    assert_like_eager(Network(), make, backend="nop")


def test_learning_rates_may_be_tensors():
    assert_like_eager(Network(), lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-2)), backend="nop")


def test_autocast_inside_of_the_loss_is_kept():
    def loss_fn(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, x)

    model = Network()
    assert_like_eager(model, of(torch.optim.SGD, lr=0.1), loss_fn, backend="nop", tolerance=1e-6)
    assert model.first.weight.dtype is torch.float32


def test_results_beside_the_loss_come_back():
    model = Network()
    loss_fn = lambda model, x: (loss_of(model, x), {"rows": x.shape[0], "out": model(x)})  # noqa: E731
    step = precast.train_step(model, loss_fn, of(torch.optim.SGD, lr=0.1)(model), batches(1)[0], backend="nop")
    loss, auxiliary = step(batches(1)[0])
    assert loss.shape == ()
    assert not loss.requires_grad
    assert auxiliary["rows"] == 8
    assert auxiliary["out"].shape == (8, 2)


def test_updates_are_written_where_the_tensors_are(monkeypatch):
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    step = precast.train_step(model, loss_of, optimizer, batches(1)[0])
    state = [tensor for each in optimizer.state.values() for tensor in each.values()]
    tensors = [*model.parameters(), *state]
    addresses, versions = [each.data_ptr() for each in tensors], [each._version for each in tensors]
    copied, copy = [], torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *a: copied.append(self) or copy(self, *a))
    step(batches(1)[0])
    assert [each.data_ptr() for each in tensors] == addresses
    assert all(each._version > version for each, version in zip(tensors, versions, strict=True))
    assert not {id(each) for each in copied} & {id(each) for each in tensors}
    assert [id(t) for each in optimizer.state.values() for t in each.values()] == list(map(id, state))


def test_parameters_that_are_frozen_or_unused_are_left_alone():
    class Partly(Network):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Linear(2, 2)

    model = Partly()
    model.first.requires_grad_(False)
    assert_like_eager(model, of(torch.optim.AdamW, lr=1e-2), steps=3, backend="nop")


def test_what_is_frozen_later_is_seen():
    model, eager = Network(), Network()
    optimizer, eager_optimizer = (of(torch.optim.SGD, lr=0.1)(each) for each in (model, eager))
    step = precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop")
    for change in (lambda m: None, lambda m: m.first.requires_grad_(False), lambda m: m.norm.eval()):
        for network in (model, eager):
            change(network)
        for batch in batches(2):
            step(batch)
            eager_step(eager, loss_of, eager_optimizer, batch)
        assert_same_training((eager, eager_optimizer), (model, optimizer), 1e-6)


def test_a_last_batch_of_another_size_is_compiled_for():
    assert_like_eager(Network(), of(torch.optim.Adam), data=[*batches(2), *batches(1, rows=3)], backend="nop")


def test_declared_sizes_are_compiled_once():
    data = [*batches(1), *batches(1, rows=3), *batches(1, rows=5)]
    shapes = {0: precast.Dim("rows", min=2)}
    step = assert_like_eager(Network(), of(torch.optim.Adam), data=data, dynamic_shapes=shapes, tolerance=1e-5)
    assert len(step._variants) == 1
    with pytest.raises(InputValueError, match="rows"):
        step(batches(1, rows=1)[0])


def test_momentum_with_dampening_begins_as_in_eager():
    make = of(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    model = Network()
    step = precast.train_step(model, loss_of, make(model), batches(1)[0], backend="nop")
    with pytest.raises(InputValueError, match="begins with its first step"):
        step.save("never.precast")
    assert_like_eager(Network(), make, backend="nop")


def test_training_continues_exactly_from_saved_state():
    def made():
        model = Network(dropout=0.3)
        torch.manual_seed(1)
        return precast.train_step(model, loss_of, torch.optim.AdamW(model.parameters()), batches(1)[0])

    straight, first, second = made(), made(), made()
    data = batches(6)
    for batch in data:
        straight(batch)
    for batch in data[:3]:
        first(batch)
    second.load_state_dict(first.state_dict())
    for batch in data[3:]:
        second(batch)
    assert_same_training((straight.model, straight.optimizer), (second.model, second.optimizer), 0.0)


def test_steps_with_infinite_gradients_are_skipped():
    model, eager = Network(), Network()
    optimizer, eager_optimizer = (of(torch.optim.AdamW, lr=1e-2)(each) for each in (model, eager))
    step = precast.train_step(model, loss_of, optimizer, batches(1)[0], skip_nonfinite=True, backend="nop")
    for number, batch in enumerate(batches(4)):
        if number == 2:
            assert not torch.isfinite(step(batch * float("inf")))
        step(batch)
        eager_step(eager, loss_of, eager_optimizer, batch)
    assert step.skipped == 1
    assert_same_training((eager, eager_optimizer), (model, optimizer), 1e-6)


def test_a_batch_that_does_not_fit_changes_nothing():
    model = Network()
    shapes = {0: precast.Dim("rows", min=2)}
    step = precast.train_step(
        model, loss_of, torch.optim.Adam(model.parameters()), batches(1)[0], dynamic_shapes=shapes, backend="nop"
    )
    before = [each.clone() for each in model.state_dict().values()]
    for wrong in (torch.zeros(8, 5), torch.zeros(8, 4, dtype=torch.float64), [torch.zeros(8, 4)]):
        with pytest.raises(InputValueError):
            step(wrong)
    assert all(map(torch.equal, before, model.state_dict().values()))


def hooked(model):
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def with_gradient_hook(model):
    model.first.weight.register_hook(lambda gradient: gradient * 2)
    return torch.optim.SGD(model.parameters())


class Wrapping(torch.optim.Optimizer):
    def __init__(self, model):
        self.inner = torch.optim.SGD(model.parameters())
        super().__init__(model.parameters(), {"lr": 1.0})

    def step(self, closure=None):
        self.inner.step(closure)


@pytest.mark.parametrize(
    ("make", "loss_fn", "settings", "words"),
    [
        (hooked, loss_of, {}, "hooks around its steps"),
        (with_gradient_hook, loss_of, {}, "hook on its gradient"),
        (of(torch.optim.LBFGS), loss_of, {}, "calls a closure"),
        (Wrapping, loss_of, {}, "keeps an optimizer or parameters in its attribute 'inner'"),
        (of(torch.optim.SGD), lambda m, x: m(x), {}, "of shape"),
        (of(torch.optim.SGD), lambda m, x: x.sum(), {}, "depends on no parameter"),
        (of(torch.optim.SGD), lambda m, x: 3.0, {}, "returned an object of type float"),
        (of(torch.optim.SGD), loss_of, {"accumulate": 3}, "3 equal parts"),
        (of(torch.optim.SGD), loss_of, {"accumulate": 0}, "accumulate cannot be"),
        (of(torch.optim.SGD), loss_of, {"grad_clip": -1.0}, "grad_clip cannot be"),
        (of(torch.optim.SGD), loss_of, {"entries": ("test",)}, "entries cannot be"),
        (lambda model: None, loss_of, {}, "as optimizer"),
    ],
)
def test_what_a_program_cannot_hold_is_refused(make, loss_fn, settings, words):
    model = Network()
    with pytest.raises((InputValueError, InputTypeError), match=words):
        precast.train_step(model, loss_fn, make(model), batches(1)[0], backend="nop", **settings)


def test_autocast_around_a_step_is_refused():
    model = Network()
    optimizer, (batch,) = torch.optim.SGD(model.parameters()), batches(1)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputValueError, match="under autocast"):
        precast.train_step(model, loss_of, optimizer, batch, backend="nop")
    step = precast.train_step(model, loss_of, optimizer, batch, backend="nop")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputValueError, match="under autocast"):
        step(batch)


def test_scripted_modules_are_refused_by_their_name():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.jit.script(torch.nn.Linear(2, 2)))
    with pytest.raises(InputTypeError, match="submodule '1' is a ScriptModule"):
        precast.train_step(model, loss_of, torch.optim.SGD(model.parameters()), batches(1)[0], backend="nop")


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(3, 1), 2.0

    def forward(self, x):
        return self.linear(x) * self.scale


def test_what_the_model_and_the_loss_read_may_change():
    weight = {"loss": 1.0}

    def loss_fn(model, batch):
        return (model(batch) * weight["loss"]).square().mean()

    torch.manual_seed(0)
    model, eager = Scaled(), Scaled()
    eager.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, eager)]
    batch = torch.randn(4, 3)
    step = precast.train_step(model, loss_fn, optimizers[0], batch, backend="nop")
    for scale, loss_weight in ((2.0, 1.0), (3.0, 1.0), (3.0, 0.5), (2.0, 1.0)):
        model.scale = eager.scale = scale
        weight["loss"] = loss_weight
        optimizers[1].zero_grad()
        expected = loss_fn(eager, batch)
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(step(batch), expected.detach())
    assert sum(map(len, step._variants.values())) == 3


def test_steps_that_draw_from_python_are_refused_by_their_line():
    model, batch = torch.nn.Linear(3, 1), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_fn(model, batch):
        return model(batch * random.random()).mean()

    with pytest.raises(precast.errors.CaptureError, match=r"random.*test_train_step"):
        precast.train_step(model, loss_fn, optimizer, batch, backend="nop")


def test_gradients_from_before_are_no_part_of_a_step():
    model, batch = torch.nn.Linear(3, 1), torch.randn(4, 3)
    model(batch).sum().backward()
    before = model.weight.grad
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wanted = model.weight.detach() - 0.01 * batch.mean(0)
    precast.train_step(model, lambda model, batch: model(batch).mean(), optimizer, batch, backend="nop")(batch)
    torch.testing.assert_close(model.weight.detach(), wanted)
    assert model.weight.grad is before


def orthogonal_in_double(gradient, ns_coefficients, ns_steps, eps):
    """What Muon approximates in bfloat16, computed in float64."""
    a, b, c = ns_coefficients
    update = gradient.double() / gradient.double().norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = update @ update.T
        update = a * update + (b * gram + c * gram @ gram) @ update
    return update


def test_muon_is_as_near_to_float64_as_eagers(monkeypatch):
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))

    def trained(dtype, is_compiled):
        torch.manual_seed(4)
        model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(2)]).to(dtype)
        optimizer = torch.optim.Muon(model.parameters(), lr=0.02)
        loss_fn = lambda model, x: (model(x).tanh() - x.sin()).square().mean()  # noqa: E731
        step = precast.train_step(model, loss_fn, optimizer, x) if is_compiled else None
        for _ in range(5):
            step(x) if step else eager_step(model, loss_fn, optimizer, x.to(dtype))
        return torch.cat([each.detach().double().flatten() for each in model.parameters()])

    eager, mine = trained(torch.float32, False), trained(torch.float32, True)
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthogonal_in_double)
    exact = trained(torch.float64, False)
    assert (mine - exact).norm() <= 1.1 * (eager - exact).norm()
