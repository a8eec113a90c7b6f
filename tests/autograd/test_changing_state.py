"""Sequences of random changes of Python's state between calls; see ``changing_state``."""

import pytest

from precast.autograd.state_guards import StateGuards
from tests.autograd.changing_state import run_sequence


@pytest.mark.parametrize("seed", range(6))
def test_compiled_follows_every_change(seed):
    run_sequence(seed)


def test_a_guard_that_holds_whatever_happens_is_found(monkeypatch):
    monkeypatch.setattr(StateGuards, "hold", lambda self: True)
    with pytest.raises(AssertionError):
        run_sequence(0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_compiled_follows_every_change_of_many(first):
    for seed in range(first, first + 20):
        run_sequence(seed)
