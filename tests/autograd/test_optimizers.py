"""Optimizers compile: ``.grad`` is read as an input, state is made at the first step, numbers change in between."""

import pytest
import torch

import precast
from precast.errors import CaptureError
from tests.autograd.optimizer_settings import (
    Setting,
    assert_same_state,
    assert_same_steps,
    assert_same_tensors,
    give_gradients,
    quick_settings,
    settings,
)


def compiled(function, backend="nop"):
    return precast.compile(function, backend=backend)


@pytest.mark.parametrize("setting", list(quick_settings()), ids=str)
def test_compiled_step_is_eagers(setting):
    step = assert_same_steps(setting, compiled, steps=4)
    assert len(precast.variants(step)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("setting", list(settings()), ids=str)
def test_compiled_step_is_eagers_with_every_setting(setting):
    assert_same_steps(setting, lambda step: compiled(step, "native"), steps=100)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_native_step_is_eagers(kind):
    setting = Setting(kind, {"lr": 0.01, "weight_decay": 0.1})
    assert_same_steps(setting, lambda step: compiled(step, "native"), steps=100)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def test_a_schedule_does_not_compile_for_ever():
    def train(compile):
        model = network()
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-2}]
        optimizer = torch.optim.Adam(groups, lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        step, inputs = compile(optimizer.step), torch.ones(3, 4)
        for _ in range(10):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            step()
            schedule.step()
        return list(model.parameters()), step

    expected, _ = train(lambda step: step)
    found, step = train(compiled)
    assert_same_tensors(expected, found, 1e-6)
    assert len(precast.variants(step)) <= 3


def test_momentum_that_is_cycled_does_not_compile_for_ever():
    def train(compile):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20)
        step, inputs = compile(optimizer.step), torch.ones(3, 4)
        for _ in range(10):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            step()
            schedule.step()
        return list(model.parameters()), step

    expected, _ = train(lambda step: step)
    for backend in ("nop", "native"):
        found, step = train(lambda step, backend=backend: compiled(step, backend))
        assert_same_tensors(expected, found, 1e-5)
        assert len(precast.variants(step)) <= 3


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_cleared(set_to_none):
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD(parameters)
    parameters[0].grad = before = torch.ones(3)
    zero_grad = compiled(optimizer.zero_grad)
    zero_grad(set_to_none=set_to_none)
    assert parameters[1].grad is None
    if set_to_none:
        assert parameters[0].grad is None
        assert before.sum() == 3
    else:
        assert parameters[0].grad is before
        assert before.sum() == 0


@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_are_clipped(foreach):
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    eager = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    give_gradients(parameters, 0)
    give_gradients(eager, 0)
    clip = compiled(lambda: torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=foreach))
    torch.testing.assert_close(clip(), torch.nn.utils.clip_grad_norm_(eager, 0.5, foreach=foreach))
    assert_same_tensors([p.grad for p in eager], [p.grad for p in parameters], 1e-6)
    compiled(lambda: torch.nn.utils.clip_grad_value_(parameters, 0.1, foreach=foreach))()
    torch.nn.utils.clip_grad_value_(eager, 0.1, foreach=foreach)
    assert_same_tensors([p.grad for p in eager], [p.grad for p in parameters], 1e-6)


def test_gradients_of_arguments_are_read_and_written():
    def halve(x, y):
        y.grad = x.grad * 2
        x.grad.mul_(0.5)
        return x.grad.sum()

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    x.grad = before = torch.ones(3)
    total = compiled(halve)(x, y)
    assert x.grad is before
    assert total == 1.5
    assert torch.equal(before, torch.full((3,), 0.5))
    assert torch.equal(y.grad, torch.full((3,), 2.0))


def test_a_gradient_that_comes_or_goes_is_another_variant():
    parameter = torch.nn.Parameter(torch.ones(3))
    has_one = compiled(lambda: torch.ones(1) if parameter.grad is None else parameter.grad * 2)
    assert has_one() == 1
    parameter.grad = torch.ones(3)
    assert has_one().sum() == 6
    parameter.grad = None
    assert has_one() == 1
    assert [variant.reason for variant in precast.variants(has_one)][1:] == ["gradients that were None are there"]


def test_another_parameter_in_a_group_has_state_of_its_own():
    first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([first], lr=0.1, momentum=0.9)
    step = compiled(optimizer.step)
    first.grad = second.grad = torch.ones(3)
    step()
    optimizer.param_groups[0]["params"][0] = second
    optimizer.state.clear()
    step()
    assert list(optimizer.state) == [second]
    optimizer.param_groups[0]["params"][0] = first
    step()
    assert len(optimizer.state) == 2
    assert torch.allclose(first, second - 0.1)


def test_steps_that_found_infinity_are_skipped():
    def train(compile):
        setting = Setting(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
        parameters = setting.parameters()
        optimizer = setting.make(parameters)
        scale = torch.tensor(8.0)

        def step(found_infinity):
            before = [parameter.detach().clone() for parameter in parameters]
            for parameter in parameters:
                parameter.grad.div_(scale)
            optimizer.step()
            with torch.no_grad():
                for parameter, old in zip(parameters, before, strict=True):
                    parameter.copy_(torch.where(found_infinity, old, parameter))
                scale.mul_(torch.where(found_infinity, 0.5, 1.0))

        step = compile(step)
        for seed in range(5):
            give_gradients(parameters, seed)
            step(torch.tensor(seed == 2))
        return [*parameters, scale]

    assert_same_tensors(train(lambda step: step), train(compiled), 1e-6)


def test_averages_of_weights_are_kept():
    def train(compile):
        model = network()
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        @compile
        def step():
            optimizer.step()
            with torch.no_grad():
                for kept, parameter in zip(average.module.parameters(), model.parameters(), strict=True):
                    kept.lerp_(parameter, 0.1)

        for seed in range(4):
            give_gradients(list(model.parameters()), seed)
            step()
        return list(average.module.parameters())

    assert_same_tensors(train(lambda step: step), train(compiled), 1e-6)


def test_differentiable_steps_have_gradients():
    def learn(compile):
        rate = torch.tensor(0.1, requires_grad=True)
        start = torch.ones(3, requires_grad=True)
        parameter = start.clone()
        parameter.retain_grad()
        optimizer = torch.optim.SGD([parameter], lr=rate, differentiable=True)
        parameter.grad = torch.arange(3.0)
        compile(optimizer.step)()
        parameter.square().sum().backward()
        return [rate.grad, start.grad]

    assert_same_tensors(learn(lambda step: step), learn(compiled), 1e-6)


def test_optimizers_that_decide_on_data_run_in_python():
    def run(compile):
        parameter = torch.nn.Parameter(torch.linspace(0, 1, 3))
        optimizer = torch.optim.LBFGS([parameter])

        def closure():
            optimizer.zero_grad()
            loss = (parameter - 3).square().sum()
            loss.backward()
            return loss

        step = compile(lambda: optimizer.step(closure))
        return [step(), step(), parameter, parameter.grad]

    expected = run(lambda step: step)
    with pytest.warns(precast.GraphBreakWarning):
        assert_same_tensors(expected, run(compiled), 1e-6)


def test_a_closure_is_called():
    def run(compile):
        parameter = torch.nn.Parameter(torch.linspace(0, 1, 3))
        optimizer = torch.optim.Adam([parameter], lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = (parameter - 3).square().sum()
            loss.backward()
            return loss

        inside, given = compile(lambda: optimizer.step(closure)), compile(optimizer.step)
        return [inside(), inside(), given(closure), parameter, parameter.grad]

    expected = run(lambda step: step)
    with pytest.warns(precast.GraphBreakWarning, match="function"):
        assert_same_tensors(expected, run(compiled), 1e-6)


def test_steps_over_sparse_gradients_run_in_python():
    def run(compile):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        table(torch.tensor([1, 2])).sum().backward()
        compile(optimizer.step)()
        return [table.weight]

    expected = run(lambda step: step)
    with pytest.warns(precast.GraphBreakWarning, match="sparse gradient"):
        assert_same_tensors(expected, run(compiled), 0.0)


def test_exported_programs_have_no_gradients():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    with pytest.raises(CaptureError, match="uses"):
        precast.functional_program(lambda x: model.weight.grad, (torch.ones(2),))


def test_state_of_a_loaded_optimizer_is_used():
    setting = Setting(torch.optim.Adam, {"lr": 0.1})

    def train(compile):
        parameters = setting.parameters()
        optimizer = setting.make(parameters)
        step = compile(optimizer.step)
        for seed in range(2):
            give_gradients(parameters, seed)
            step()
        kept = optimizer.state_dict()
        optimizer.load_state_dict(
            {**kept, "state": {k: {n: t * 2 for n, t in v.items()} for k, v in kept["state"].items()}}
        )
        give_gradients(parameters, 3)
        step()
        return optimizer, parameters

    (eager_optimizer, eager), (optimizer, own) = train(lambda step: step), train(compiled)
    assert_same_tensors(eager, own, 1e-6)
    assert_same_state(eager_optimizer, eager, optimizer, own, 1e-6)


def test_a_parameter_that_leaves_its_group_is_left_alone():
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    step = compiled(optimizer.step)
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    step()
    step()
    del optimizer.param_groups[0]["params"][1]
    step()
    torch.testing.assert_close(parameters[0], torch.full((3,), 0.7))
    torch.testing.assert_close(parameters[1], torch.full((3,), 0.8))


def test_parameters_that_come_to_share_memory_are_seen():
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    step = compiled(optimizer.step)
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    step()
    step()
    whole = torch.ones(6)
    with torch.no_grad():
        parameters[0].set_(whole[:3])
        parameters[1].set_(whole[1:4])
    with pytest.warns(precast.GraphBreakWarning, match="overlap"):
        step()
    torch.testing.assert_close(whole, torch.tensor([0.9, 0.8, 0.8, 0.9, 1.0, 1.0]))
