"""Whole training steps compile: the backward inside of the program, clipping, the optimizer, in eager's numbers."""

import pytest
import torch
from torch.nn import functional

import precast
from tests.autograd.optimizer_settings import assert_same_state, assert_same_tensors, quick_settings

BATCHES = [torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(100)]


def compiled(function, backend="nop"):
    return precast.compile(function, backend=backend)


def uncompiled(function):
    return function


class Network(torch.nn.Module):
    """All its parameters have gradients that are more than roundings: optimizers divide by them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(4, 5, bias=False), torch.nn.BatchNorm1d(5)
        self.last = torch.nn.Linear(5, 2, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def train(make, compile, steps):
    """The model, the optimizer and the losses after so many steps."""
    model = Network()
    optimizer = make(list(model.parameters()))

    @compile
    def step(x):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x[:, :2].sin())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = [step(x) for x in BATCHES[:steps]]
    return model, optimizer, losses, step


def assert_trained_alike(make, compile, steps, tolerance):
    expected_model, expected_optimizer, expected, _ = train(make, uncompiled, steps)
    model, optimizer, losses, step = train(make, compile, steps)
    assert_same_tensors(expected, losses, tolerance)
    assert all(loss.requires_grad for loss in losses)
    eager, own = list(expected_model.parameters()), list(model.parameters())
    assert_same_tensors(eager, own, tolerance)
    assert_same_tensors([each.grad for each in eager], [each.grad for each in own], tolerance)
    assert_same_tensors(list(expected_model.buffers()), list(model.buffers()), tolerance)
    assert_same_state(expected_optimizer, eager, optimizer, own, tolerance)
    return step


_WITHOUT_VECTORS = {"Muon"}


@pytest.mark.parametrize("setting", [s for s in quick_settings() if s.kind.__name__ not in _WITHOUT_VECTORS], ids=str)
@pytest.mark.slow
def test_a_compiled_training_step_is_eagers_with_every_optimizer(setting):
    assert_trained_alike(setting.make, lambda step: compiled(step, "native"), 30, 1e-3)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_compiled_training_step_is_eagers(kind):
    def make(parameters):
        return kind(parameters, lr=1e-2)

    step = assert_trained_alike(make, lambda step: compiled(step, "native"), 100, 1e-4)
    assert len(precast.variants(step)) <= 2


def test_gradients_add_up():
    def run(compile):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        model.bias.grad = before = torch.ones(2)

        @compile
        def accumulate(x):
            model(x).sin().sum().backward()

        for seed in range(3):
            accumulate(torch.full((4, 3), 0.1 * seed))
        assert model.bias.grad is before
        return [model.weight.grad, model.bias.grad]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)


def test_a_second_backward_of_a_returned_loss_is_an_error():
    weight = torch.nn.Parameter(torch.ones(3))

    def step(x):
        loss = (weight * x).sin().sum()
        loss.backward()
        return loss, loss

    first, second = compiled(step)(torch.ones(3))
    assert first is second
    with pytest.raises(RuntimeError, match="second time"):
        (first * 2).backward()


def test_a_loss_that_was_kept_can_be_differentiated_again():
    def run(compile):
        weight = torch.nn.Parameter(torch.ones(3))

        @compile
        def step(x):
            loss = (weight * x).sin().sum()
            loss.backward(retain_graph=True)
            return loss

        step(torch.ones(3)).backward()
        return [weight.grad]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)


def test_what_is_returned_beside_a_loss_keeps_its_gradient():
    def run(compile):
        weight, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))

        @compile
        def step(x):
            (weight * x).sin().sum().backward()
            return (other * x).cos().sum()

        step(torch.ones(3)).backward()
        return [weight.grad, other.grad]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)


def test_gradients_taken_inside_are_gradients_of_the_graph():
    def run(compile):
        weight = torch.nn.Parameter(torch.ones(3))

        @compile
        def step(x):
            loss = (weight * x).sin().sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(gradient)
            return loss.detach(), gradient

        results = [each for _ in range(3) for each in step(torch.ones(3))]
        assert weight.grad is None
        return [*results, weight]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)


def test_gradient_penalties_are_gradients_of_gradients():
    def run(compile):
        weight = torch.nn.Parameter(torch.linspace(0, 1, 3))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        @compile
        def step(x):
            optimizer.zero_grad()
            x.requires_grad_()
            score = (weight * x).sin().sum()
            (slope,) = torch.autograd.grad(score, x, create_graph=True)
            loss = score + (slope.norm() - 1).square()
            loss.backward()
            optimizer.step()
            return loss

        return [step(torch.full((3,), 0.3)).detach() for _ in range(4)] + [weight, weight.grad]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)


def test_two_optimizers_take_turns():
    def run(compile):
        torch.manual_seed(0)
        maker, judge = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        makers, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())

        @compile
        def step(noise, real):
            fake = maker(noise)
            judges.zero_grad()
            judged = judge(real).sigmoid().mean() - judge(fake).sigmoid().mean()
            judged.backward(retain_graph=True)
            judges.step()
            makers.zero_grad()
            made = judge(maker(noise)).sigmoid().mean()
            made.backward()
            makers.step()
            return judged, made

        results = []
        for seed in range(4):
            noise, real = BATCHES[seed][:, :3], BATCHES[seed + 1]
            results += [each.detach() for each in step(noise, real)]
        return [*results, *maker.parameters(), *judge.parameters()]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-5)


def test_scaled_gradients_are_unscaled_and_steps_skipped():
    def run(compile):
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), x[:, :2].sin())
            (loss * optimizer.grad_scale).backward()
            optimizer.step()
            return loss

        losses = []
        for number, x in enumerate(BATCHES[:6]):
            optimizer.found_inf.fill_(number == 3)
            losses.append(step(x).detach())
        return [*losses, *model.parameters()]

    assert_same_tensors(run(uncompiled), run(compiled), 1e-5)


def test_a_compiled_model_inside_is_a_part_of_the_step():
    model = Network()
    inside, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.first.weight.detach().clone()

    @compiled
    def step(x):
        optimizer.zero_grad()
        inside(x).square().sum().backward()
        optimizer.step()

    step(BATCHES[0])
    assert not torch.equal(model.first.weight, before)
    torch.testing.assert_close(model.first.weight, before - 0.1 * model.first.weight.grad)


def test_hooks_on_parameters_are_called():
    def run(compile):
        seen, weight = [], torch.nn.Parameter(torch.ones(3))

        @compile
        def step(x):
            (weight * x).sum().backward()

        step(torch.ones(3))
        weight.register_hook(lambda gradient: seen.append(gradient.sum().item()) or gradient * 2)
        step(torch.ones(3))
        weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.sum().item()))
        step(torch.ones(3))
        return seen, weight.grad

    expected, gradient = run(uncompiled)
    with pytest.warns(precast.GraphBreakWarning, match="hooks"):
        seen, own = run(compiled)
    assert seen == expected
    assert torch.equal(own, gradient)


def test_transforms_of_torch_func_over_parameters():
    def run(compile):
        model = Network().eval()

        @compile
        def step(x):
            parameters = dict(model.named_parameters())

            def loss(parameters):
                return torch.func.functional_call(model, parameters, (x,)).square().mean()

            gradients = torch.func.grad(loss)(parameters)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.sub_(gradients[name], alpha=0.1)

        for x in BATCHES[:3]:
            step(x)
        return list(model.parameters())

    assert_same_tensors(run(uncompiled), run(compiled), 1e-6)
