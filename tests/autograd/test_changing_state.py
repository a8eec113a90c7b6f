"""Sequences of random changes of Python's state between calls; see ``changing_state``."""

import pytest

from precast.autograd.guards.state import StateGuards
from tests.autograd.changing_state import run_sequence


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_compiled_follows_every_change(first):
    for seed in range(first, first + 4):
        run_sequence(seed)


@pytest.mark.slow
def test_native_code_follows_every_change():
    run_sequence(99, backend="native")


def test_a_guard_that_holds_whatever_happens_is_found(monkeypatch):
    monkeypatch.setattr(StateGuards, "hold", lambda self: True)
    with pytest.raises(AssertionError):
        list(map(run_sequence, range(16)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_compiled_follows_every_change_of_many(first):
    for seed in range(first, first + 20):
        run_sequence(seed)
