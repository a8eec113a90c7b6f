"""Programs that choose in Python by values of tensors: what can only go on one way is checked, the rest may fork."""

import pytest
import torch
from torch.nn import functional

import precast
from precast.errors import DataDependentError


class Positive(torch.nn.Module):
    def forward(self, x):
        if not (x > 0).all():
            raise ValueError(f"{x} must be positive")
        return x.log()


class Lengths(torch.nn.Module):
    def forward(self, x, lengths):
        assert lengths.max().item() <= x.shape[0], "too long"
        return (x * (torch.arange(x.shape[0]) < lengths[:, None])).sum(1)


GOOD, BAD = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
CASES = [
    (Positive(), (GOOD,), (BAD,), ValueError),
    (Lengths(), (GOOD, torch.tensor([1, 2])), (GOOD, torch.tensor([1, 3])), AssertionError),
]


def packaged(module, args, path):
    precast.package(precast.export.export(module, args), path=path)
    return precast.runtime.load(path)


@pytest.mark.thinned
@pytest.mark.parametrize(("module", "good", "bad", "error"), CASES)
@pytest.mark.parametrize("way", ["nop", "native", "export", "package"])
def test_a_branch_that_raises_is_a_check(way, module, good, bad, error, tmp_path):
    match way:
        case "export":
            call, error = precast.export.export(module, good).module(), RuntimeError
        case "package":
            call, error = packaged(module, good, tmp_path / "model.precast"), RuntimeError
        case _:
            call = precast.compile(module, backend=way, fullgraph=True)
    torch.testing.assert_close(torch.as_tensor(call(*good)), module(*good))
    with pytest.raises(error):
        call(*bad)


@pytest.mark.parametrize("backend", ["nop", "native"])
def test_a_check_that_fails_raises_the_error_of_the_program(backend):
    with pytest.raises(ValueError, match=r"tensor\(\[ 1., -2.\]\) must be positive"):
        precast.compile(Positive(), backend=backend, fullgraph=True)(BAD)


class TooLowError(Exception):
    def __init__(self, text):
        super().__init__(f"too low: {text}")


def test_an_error_of_a_class_of_the_users_own_is_raised_as_such():
    def function(x):
        if x.min() < 0:
            raise TooLowError("below zero")
        return x * 2

    with pytest.raises(TooLowError, match="below zero"):
        precast.compile(function, backend="nop", fullgraph=True)(BAD)


def test_an_error_whose_class_is_local_is_raised_as_such():
    class LocalError(Exception):
        pass

    def function(x):
        if x.min() < 0:
            raise LocalError("below zero")
        return x * 2

    with pytest.raises(LocalError, match="below zero"):
        precast.compile(function, backend="nop", fullgraph=True)(BAD)


def test_losses_and_distributions_that_look_at_their_values_train():
    def loss(mean, deviation, target):
        normal = torch.distributions.Normal(mean, deviation.exp())
        mixture = torch.distributions.MultivariateNormal(mean, torch.diag(deviation.exp()))
        return functional.gaussian_nll_loss(mean, target, deviation.exp()) - (
            normal.log_prob(target).sum() + normal.entropy().sum() + mixture.log_prob(target)
        )

    given = [torch.tensor(each) for each in ([0.5, 1.0], [0.1, -0.3], [1.0, 2.0])]
    eager, mine = ([each.clone().requires_grad_() for each in given] for _ in range(2))
    expected, found = loss(*eager), precast.compile(loss, backend="nop", fullgraph=True)(*mine)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, mine), torch.autograd.grad(expected, eager))


def test_comparisons_with_python_results_are_checks():
    def function(x):
        if not torch.allclose(x, x.flip(0).flip(0)) or torch.equal(x, x + 1):
            raise RuntimeError("not itself")
        return x * 2

    torch.testing.assert_close(precast.compile(function, backend="nop", fullgraph=True)(GOOD), GOOD * 2)


class Either(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):
        x = self.one(x) if x.sum() > 0 else self.other(x)
        if x.max() > 10:
            x = x / 10
        return {"x": x, "nothing": None}


@pytest.mark.parametrize("is_packaged", [False, True])
def test_a_branch_with_two_ways_forks_where_that_is_asked_for(is_packaged, tmp_path):
    module = Either()
    with pytest.raises(DataDependentError, match="branch_on_data"):
        precast.export.export(module, (GOOD,))
    if is_packaged:
        precast.package(module, (GOOD,), path=tmp_path / "model.precast")
        call = precast.runtime.load(tmp_path / "model.precast")
    else:
        call = precast.export.export(module, (GOOD,), branch_on_data=True).module()
    for given in (GOOD, -GOOD, GOOD * 1000, GOOD * -1000):
        found, expected = call(given), module(given)
        assert found["nothing"] is None
        torch.testing.assert_close(torch.as_tensor(found["x"]), expected["x"].detach())


def test_a_number_that_decides_several_times_forks_once():
    class Layers(torch.nn.Module):
        def forward(self, x):
            some = (x > 0).any().item()
            for _ in range(5):
                x = x * 2 if some else x + 1
            return x if some else -x

    exported = precast.export.export(Layers(), (GOOD,), branch_on_data=True)
    assert len(exported.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)) == 1
    for given in (GOOD, -GOOD):
        torch.testing.assert_close(exported.module()(given), Layers()(given))


def test_a_branch_with_two_ways_is_run_in_python_by_compile():
    module = Either()
    compiled = precast.compile(module, backend="nop")
    with pytest.warns(precast.GraphBreakWarning):
        found = compiled(-GOOD)["x"]
    torch.testing.assert_close(found, module(-GOOD)["x"])


def test_what_follows_a_branch_that_never_raises_is_not_tried_for_long():
    calls = []

    def function(x):
        calls.append(1)
        while x.sum() > 0:
            x = x - 1
        return x

    with pytest.raises(DataDependentError):
        precast.compile(function, backend="nop", fullgraph=True)(GOOD)
    assert len(calls) < 10


def is_positive(x):
    return bool(x.min() > 0)


def test_what_once_ended_in_an_error_may_go_on_the_next_time():
    def function(x, y):
        if not is_positive(x):
            raise ValueError("x must be positive")
        return y * 2 if is_positive(y) else y * 3

    compiled = precast.compile(function, backend="nop")
    with pytest.warns(precast.GraphBreakWarning):
        torch.testing.assert_close(compiled(GOOD, BAD), BAD * 3)
    torch.testing.assert_close(compiled(GOOD, GOOD.clone()), GOOD * 2)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.count += 1
        self.seen.append(len(self.seen))
        if x.min() < 0:
            raise KeyError("negative")
        self.count += 10
        return x * self.count


@pytest.mark.parametrize("backend", ["nop", "native"])
def test_what_was_written_before_the_error_is_there_after_it(backend):
    eager, module = Counting(), Counting()
    compiled = precast.compile(module, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(GOOD), eager(GOOD))
    for call in (eager, compiled):
        with pytest.raises(KeyError, match=r"^'negative'$"):
            call(BAD)
    assert (module.count, module.seen) == (eager.count, eager.seen)
