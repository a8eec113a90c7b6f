"""Clocks, chance outside of torch, files, the environment: read as in eager, and never constants of a graph."""

import itertools
import os
import random
import time
import warnings
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError

X = torch.ones(3)


def by_chance(x):
    return x * random.random()


def by_choice(x):
    return x * random.choice([1, 2, 3, 4, 5, 6, 7])


def by_numpy(x):
    return x + float(np.random.rand())


def by_clock(x):
    return x + time.perf_counter_ns()


def by_date(x):
    return x + datetime.now().microsecond


def by_file(x):
    return x + len(Path(__file__).read_text())


def by_opened_file(x):
    with open(__file__) as file:
        return x + len(file.read())


IMPURE = [by_chance, by_choice, by_numpy, by_clock, by_date, by_file, by_opened_file]


@pytest.mark.parametrize("function", IMPURE, ids=lambda function: function.__name__)
def test_impure_programs_run_as_in_eager_and_that_is_told_once(function):
    compiled = aot_function(function, nop)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(X)
    (message,) = [str(each.message) for each in caught]
    assert f"{function.__name__} runs uncompiled" in message
    assert __file__ in message or "random numbers" in message
    for seed in (1, 2):
        results = []
        for run in (function, compiled):
            random.seed(seed)
            np.random.seed(seed)
            results.append(run(X))
        if function in (by_chance, by_choice, by_numpy, by_file):
            assert torch.equal(*results)


def test_impure_code_that_does_not_run_is_no_matter():
    def timed(x, verbose=False):
        started = time.time() if verbose else 0.0
        return x * 2 + started

    compiled = aot_function(timed, nop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(X), X * 2)


def test_only_the_calls_that_are_impure_run_uncompiled():
    def skipping(x, training):
        return x if training and random.random() < 0.0 else x * 2

    compiled = aot_function(skipping, nop)
    with pytest.warns(UserWarning, match="runs uncompiled"):
        compiled(X, True)
    before = random.getstate()
    assert torch.equal(compiled(X, False), X * 2)
    assert random.getstate() == before


def test_compiling_draws_no_numbers():
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    with pytest.warns(UserWarning, match="runs uncompiled"):
        result = aot_function(lambda x: x * random.random() + float(np.random.rand()), nop)(X)
    assert torch.equal(result, X * expected[0] + expected[1])


def test_the_environment_is_a_guard(monkeypatch):
    def scaled(x):
        return x * float(os.environ.get("SCALE_OF_THIS_TEST", "2"))

    compiled = aot_function(scaled, nop)
    assert torch.equal(compiled(X), X * 2)
    monkeypatch.setenv("SCALE_OF_THIS_TEST", "5")
    assert torch.equal(compiled(X), X * 5)
    assert precast.variants(compiled)[1].reason == "the environment has changed"


def test_a_clock_imported_by_an_outer_function_is_read_at_every_call():
    from time import perf_counter as clock

    def function(x):
        return x + clock()

    compiled = precast.compile(function, backend="nop")
    x = torch.zeros(1, dtype=torch.float64)
    with pytest.warns(UserWarning, match="perf_counter"):
        first = compiled(x)
    assert compiled(x) > first


def _numbers():
    yield from range(1, 100)


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers, self.scale = itertools.count(1), 2

    def forward(self, x):
        return x * next(self.numbers) * self.scale


def _with_variable(made, use):
    return lambda x: x * use(made)


SPENT_BY_USE = {
    "count": lambda: _with_variable(itertools.count(1), next),
    "cycle": lambda: _with_variable(itertools.cycle([1.0, 2.0, 3.0]), next),
    "generator": lambda: _with_variable(_numbers(), next),
    "iterator in a list": lambda: _with_variable([iter(range(1, 9))], lambda made: next(made[0])),
    "random.Random": lambda: _with_variable(random.Random(3), lambda made: made.random()),
    "numpy Generator": lambda: _with_variable(np.random.default_rng(3), lambda made: float(made.random())),
    "numpy RandomState": lambda: _with_variable(np.random.RandomState(3), lambda made: float(made.rand())),
    "attribute of a module": Counted,
}


@pytest.mark.parametrize("name", SPENT_BY_USE)
def test_what_every_use_changes_is_used_as_in_eager(name):
    program, same = SPENT_BY_USE[name](), SPENT_BY_USE[name]()
    compiled, x = precast.compile(program, backend="nop"), torch.ones(2)
    with pytest.warns(precast.GraphBreakWarning, match="which every use changes"):
        assert torch.equal(compiled(x), same(x))
    for _ in range(3):
        assert torch.equal(compiled(x), same(x))
    with pytest.raises(CaptureError, match="which every use changes"):
        precast.compile(program, backend="nop", fullgraph=True)(x)


def test_an_iterator_that_is_not_used_is_no_hindrance():
    module = Counted()
    compiled = precast.compile(lambda x: x * module.scale, backend="nop", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert next(module.numbers) == 1


_GENERATOR = torch.Generator()


def _seeded(x):
    torch.manual_seed(7)
    return x + torch.rand(2)


def _with_a_generator_of_its_own(x):
    return x + torch.rand(2, generator=torch.Generator().manual_seed(3))


def _with_a_seeded_generator(x):
    _GENERATOR.manual_seed(1)
    return x + torch.rand(2, generator=_GENERATOR)


def _forked(x):
    with torch.random.fork_rng():
        drawn = torch.rand(2)
    return x + drawn + torch.rand(2)


def _drawn_again(x):
    state = torch.get_rng_state()
    drawn = torch.rand(2)
    torch.set_rng_state(state)
    return x + drawn, torch.rand(2)


def _in_another_dtype(x):
    torch.set_default_dtype(torch.float64)
    made = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return x + made


@pytest.mark.parametrize(
    "program",
    [_seeded, _with_a_generator_of_its_own, _with_a_seeded_generator, _forked, _drawn_again, _in_another_dtype],
)
def test_what_sets_random_states_or_defaults_runs_in_eager(program):
    compiled = precast.compile(program, backend="nop")
    with pytest.warns(UserWarning, match="runs uncompiled"):
        compiled(torch.ones(2))
    for seed in range(2):
        results = []
        for call in (program, compiled):
            torch.manual_seed(seed)
            results.append((call(torch.ones(2)), torch.rand(1)))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
