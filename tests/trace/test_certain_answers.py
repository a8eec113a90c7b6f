"""Comparisons of random numbers that come out one way whatever is drawn may decide in Python; others may not."""

import operator

import pytest
import torch

from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import DataDependentError

COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]
ALWAYS = {(operator.lt, 0): False, (operator.ge, 0): True} | {
    (compare, 1): compare in (operator.lt, operator.le) for compare in COMPARISONS
}


def chosen(compare, limit, draw=lambda x: torch.rand([])):
    """What compiled code does where a comparison decides."""
    return aot_function(lambda x: x * 2 if compare(draw(x), limit) else x * 3, nop)(torch.ones(2, requires_grad=True))


@pytest.mark.parametrize(("compare", "limit"), ALWAYS)
def test_a_certain_comparison_decides(compare, limit):
    assert chosen(compare, float(limit)).tolist() == [2.0 if ALWAYS[compare, limit] else 3.0] * 2


@pytest.mark.parametrize("compare", COMPARISONS)
def test_an_uncertain_comparison_is_refused(compare):
    with pytest.raises(DataDependentError):
        chosen(compare, 0.5)


def test_numbers_that_were_not_drawn_are_refused():
    with pytest.raises(DataDependentError):
        chosen(operator.lt, 0.0, draw=torch.sum)
