"""A loop overwrites what it reads last, where no other iteration needs it; numbers stay the same."""

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.passes.memory import plan
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered

X = torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ONE = X.numel() * X.element_size()


def planned(function):
    program = fuse(lowered(function, X))
    for mine, eager in zip(interpret(program, [X]), [function(X)], strict=True):
        torch.testing.assert_close(mine, eager)
    return plan(program).arena_size.constant


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x @ x).sin() @ x,
        lambda x: torch.nn.functional.layer_norm(x @ x, [16]) @ x,
        lambda x: ((x @ x).sin() + x.t()) @ x,
    ],
    ids=["elements", "rows", "with another operand"],
)
def test_what_dies_in_a_loop_is_overwritten(function):
    assert planned(function) == ONE


def test_the_memory_of_a_result_is_used_on_the_way_to_it():
    assert planned(lambda x: (x @ x).sin()) == 0


def test_what_a_kernel_makes_of_its_rows_lies_where_its_result_is_going_to():
    assert planned(lambda x: x.softmax(1)) == 0
    assert planned(lambda x: (x @ x).softmax(1)) == ONE


def test_what_a_kernel_makes_and_reads_after_its_result_is_kept_apart():
    def function(x):
        powers = (x - x.amax(1, keepdim=True)).exp()
        return powers / powers.sum(1, keepdim=True), (powers * x).sum(1)

    results = interpret(fuse(lowered(function, X)), [X])
    torch.testing.assert_close(tuple(results), function(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((y := x @ x).sin() + y.t()) @ x,
        lambda x: ((y := x @ x).sin() + y.sum()) @ y,
        lambda x: ((y := x @ x).sin() + y.flip(1)) @ x,
    ],
    ids=["transposed", "read again", "turned within its row"],
)
def test_what_another_iteration_or_step_needs_is_kept(function):
    assert planned(function) >= 2 * ONE
