"""Random programs of views and writes over overlapping inputs: values, aliases and gradients are eager's."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from precast.compilers import nop
from tests.autograd.gradient_programs import GradientProgram, gradient_programs
from tests.autograd.like_eager import assert_like_eager, assert_same_gradients, copying


def runs_in_eager(program: GradientProgram) -> bool:
    """Whether eager has values and gradients for the program, and gradients of those."""
    leaves, args = program.inputs()
    try:
        outputs = program(*args)
        assert_same_gradients((leaves, [*args, *outputs]), (leaves, [*args, *outputs]))
    except RuntimeError:
        return False
    return True


SETTINGS = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=25
)


@settings(SETTINGS, derandomize=True)
@given(gradient_programs())
def test_random_programs(program: GradientProgram):
    assume(runs_in_eager(program))
    assert_like_eager(program, program.inputs, compiler=nop)


@settings(SETTINGS, derandomize=True)
@given(gradient_programs())
def test_random_programs_with_results_in_memory_of_their_own(program: GradientProgram):
    assume(runs_in_eager(program))
    assert_like_eager(program, program.inputs, compiler=copying)


@pytest.mark.slow
@settings(SETTINGS, max_examples=400)
@given(gradient_programs())
def test_many_random_programs(program: GradientProgram):
    assume(runs_in_eager(program))
    assert_like_eager(program, program.inputs, compiler=copying)
    torch.manual_seed(0)
    assert_like_eager(program, program.inputs, compiler=nop, dynamic=True)
