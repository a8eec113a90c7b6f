"""Merging takes a time that grows with the program, and not with its square."""

import torch

from precast.native.loops import scalars
from precast.native.loops.program import Kernel
from precast.native.passes.inline import inline_producers
from precast.native.passes.merge import merge_kernels
from precast.native.passes.tidy import remove_dead
from tests.native.lowering.pipeline import lowered


def count_rebuilding(monkeypatch):
    """A list with an entry for every value that is rebuilt from now on."""
    rebuilt, rebuild = [], scalars._with_operands
    monkeypatch.setattr(scalars, "_with_operands", lambda *both: rebuilt.append(1) or rebuild(*both))
    return rebuilt


def chain(length):
    """Results that each follow from the last: one kernel takes in all of them, one after another."""

    def function(x):
        results = []
        for _ in range(length):
            x = (x * 2 + 1).sin()
            results.append(x)
        return results

    return remove_dead(inline_producers(lowered(function, torch.randn(4))))


def test_a_kernel_that_takes_in_twice_as_many_is_not_rebuilt_for_each(monkeypatch):
    rebuilt = count_rebuilding(monkeypatch)
    counts = []
    for length in (10, 20):
        program = chain(length)
        rebuilt.clear()
        (merged,) = merge_kernels(program).steps
        assert isinstance(merged, Kernel)
        assert len(merged.written) == length
        counts.append(len(rebuilt))
    assert counts[1] <= 2.2 * counts[0]


def backward_chain(length):
    """Sums that each take one more in: a kernel that has grown is merged with a small one before it."""

    def function(x, w):
        parts = [(x @ w[step]).sin() for step in range(length)]
        total = parts[-1]
        for part in reversed(parts[:-1]):
            total = total + part.exp()
        return *parts, total

    return remove_dead(inline_producers(lowered(function, torch.randn(4, 4), torch.randn(length, 4, 4))))


def test_a_small_kernel_that_a_grown_one_joins_is_what_is_rebuilt(monkeypatch):
    rebuilt = count_rebuilding(monkeypatch)
    counts = []
    for length in (10, 20):
        program = backward_chain(length)
        rebuilt.clear()
        merge_kernels(program)
        counts.append(len(rebuilt))
    assert counts[1] <= 2.2 * counts[0]


def test_what_statements_share_is_visited_once(monkeypatch):
    shared = scalars.Constant(1.0, "f64")
    for _ in range(5):
        shared = scalars.apply("add", shared, shared)
    visited, visit = [], scalars.operands_of
    monkeypatch.setattr(scalars, "operands_of", lambda value: visited.append(value) or visit(value))
    memo = {}
    for _ in range(3):
        scalars.rewrite(scalars.apply("sin", shared), lambda value: value, memo)
    # Once to walk on, once to rebuild.
    assert len(visited) == 2 * (6 + 3)
