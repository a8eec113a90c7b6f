"""Random programs of views and writes over overlapping inputs: values, aliases and gradients are eager's."""

from collections.abc import Sequence

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
        if has_second_history(args, outputs):
            return False
        assert_same_gradients((leaves, [*args, *outputs]), (leaves, [*args, *outputs]))
    except RuntimeError:
        return False
    return True


def has_second_history(args: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether one memory has two histories, as where a detached alias was written into: such results are copies."""
    roots = {_memory(arg): {id(_root(arg))} for arg in args}
    for output in outputs:
        if output.requires_grad:
            roots.setdefault(_memory(output), set()).add(id(_root(output)))
    return any(len(found) > 1 for found in roots.values())


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


SETTINGS = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=10
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
