"""Inputs that are the same tensor, or overlap in memory, and are written into."""

from functools import partial

import pytest
import torch

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError, InputValueError
from tests.autograd.like_eager import CompilationCount, assert_like_eager, leaf


def write_first(x, y):
    x.mul_(2)
    return x + y


def write_second(x, y):
    y.add_(x * 2)
    return x.sin(), y.cos()


def return_both(x, y):
    x.add_(1)
    return y, x


def write_both(x, y):
    x.add_(1)
    y.mul_(3)
    return x * y


def return_view(x, y):
    x.add_(1)
    return y.unsqueeze(0), x.view(-1)


def lay_out_second_anew(x, y):
    x.add_(1)
    y.transpose_(0, -1)
    y.unsqueeze_(0)
    return x.sum() + y


FUNCTIONS = pytest.mark.parametrize(
    "function", [write_first, write_second, return_both, write_both, return_view, lay_out_second_anew]
)
HISTORY = pytest.mark.parametrize("differentiable", [False, True])


def memory(differentiable: bool):
    x = leaf(4, 4)
    return ([x], x * 1) if differentiable else ([x], x.detach().clone())


@pytest.mark.thinned
@HISTORY
@FUNCTIONS
def test_same_tensor_twice(function, differentiable):
    def inputs():
        origins, x = memory(differentiable)
        return origins, [x, x]

    assert_like_eager(function, inputs)


@pytest.mark.thinned
@HISTORY
@FUNCTIONS
def test_overlapping_views(function, differentiable):
    def inputs():
        origins, x = memory(differentiable)
        return origins, [x[0], x[:, 0]]

    assert_like_eager(function, inputs)


@pytest.mark.thinned
@HISTORY
@FUNCTIONS
def test_tensor_and_its_view(function, differentiable):
    def inputs():
        origins, x = memory(differentiable)
        return origins, [x, x.t()]

    assert_like_eager(function, inputs)


@pytest.mark.thinned
@HISTORY
@FUNCTIONS
def test_views_that_share_memory_but_no_bytes(function, differentiable):
    def inputs():
        origins, x = memory(differentiable)
        return origins, [x[0], x[1]]

    assert_like_eager(function, inputs)
    # Autograd counts changes for the whole memory: saving one input itself must not make it look changed.
    assert_like_eager(function, inputs, compiler=nop)


@pytest.mark.thinned
@HISTORY
@FUNCTIONS
def test_interleaved_views_share_no_bytes(function, differentiable):
    def inputs():
        origins, x = memory(differentiable)
        return origins, [x.view(-1)[::2], x.view(-1)[1::2]]

    assert_like_eager(function, inputs)


@HISTORY
def test_chain_of_three(differentiable):
    def function(x, y, z):
        y.mul_(2)
        return x + z

    def inputs():
        origins, x = memory(differentiable)
        flat = x.view(-1)
        return origins, [flat[0:4], flat[2:6], flat[4:8]]

    assert_like_eager(function, inputs)


@HISTORY
def test_duplicate_beside_an_overlap(differentiable):
    def function(x, y, z):
        x.mul_(2)
        return (x * y + z).sin()

    def inputs():
        origins, x = memory(differentiable)
        return origins, [x[0], x[0:1], x[:, 0]]

    def with_repeat():
        origins, x = memory(differentiable)
        row = x[0]
        return origins, [row, row, x[:, 0]]

    assert_like_eager(function, inputs)
    assert_like_eager(function, with_repeat)


def inputs_of(graph):
    return [node for node in graph.nodes if node.op == "placeholder"]


def test_repeated_tensor_is_one_input_of_the_graph():
    count = CompilationCount()
    x = torch.ones(3)
    aot_function(write_first, count)(x, x)
    assert len(inputs_of(count.graphs[0].graph)) == 1


def test_overlapping_tensors_are_one_input_of_the_graph():
    count = CompilationCount()
    x = torch.ones(3, 3)
    aot_function(write_first, count)(x[0], x[:, 0])
    assert [node.meta["val"].shape for node in inputs_of(count.graphs[0].graph)] == [(3, 3)]


def test_disjoint_views_stay_two_inputs():
    count = CompilationCount()
    x = torch.ones(3, 3)
    aot_function(write_first, count)(x[0], x[1])
    assert len(inputs_of(count.graphs[0].graph)) == 2


def test_repeated_tensor_that_is_only_read_stays_two_inputs():
    count = CompilationCount()
    x = torch.ones(3)
    aot_function(lambda x, y: x + y, count)(x, x)
    assert len(inputs_of(count.graphs[0].graph)) == 2


def test_later_call_that_does_not_repeat_gets_its_own_variant():
    count = CompilationCount()
    compiled = aot_function(write_first, count)
    for repeats in (True, False, True, False):
        x = torch.ones(3)
        y = x if repeats else torch.ones(3)
        assert compiled(x, y).tolist() == ([4.0] * 3 if repeats else [3.0] * 3)
    assert len(count) == 2


def test_later_call_that_overlaps_otherwise_gets_its_own_variant():
    count = CompilationCount()
    compiled = aot_function(write_first, count)
    for rows in ((0, 1), (0, 0), (1, 1), (1, 0)):
        x, y = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
        ours, eager = compiled(x[rows[0]], x[rows[1]]), write_first(y[rows[0]], y[rows[1]])
        assert torch.equal(ours, eager)
        assert torch.equal(x, y)


def test_gradients_of_a_repeated_tensor_that_is_only_read_add_up():
    x = leaf(3)
    aot_function(lambda x, y: (x * y).sum(), nop)(x, x).backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_overlap_outside_of_autograds_sight_is_refused():
    x = leaf(3)
    y = x * 1
    with pytest.raises(InputValueError, match="not views of one tensor"):
        aot_function(write_first, nop)(y, y.detach())


def test_overlapping_input_that_is_pointed_at_other_memory_is_refused():
    def write_and_set(x, y):
        x.mul_(2)
        y.set_(torch.ones(3))
        return x + 1

    x = torch.ones(2, 3)
    with pytest.raises(CaptureError, match="points an input at other memory"):
        aot_function(write_and_set, nop)(x[:, 1:], x[:, :2])


def test_overlap_without_gradients_needs_no_common_base():
    def inputs():
        x = torch.ones(4)
        return [x], [x, x.detach()[1:3].expand(4, 2)[0], x]

    def function(x, y, _):
        x.mul_(2)
        return y * 1

    assert_like_eager(function, inputs)


def _with_its_detached_self():
    x = leaf(3, 3)
    result = x * 1
    return [x], [result, result.detach()]


def test_what_overlaps_without_being_views_of_one_tensor_runs_in_eager_by_default():
    compiled = partial(precast.compile, backend="nop")
    with pytest.warns(precast.GraphBreakWarning, match="not views of one tensor"):
        assert_like_eager(write_first, _with_its_detached_self, compile=lambda function, _, dynamic: compiled(function))


def _moved(x, y):
    x.unsqueeze_(0)
    y.transpose_(0, 1)
    return x * y.sum()


def test_overlapping_views_get_other_sizes_and_gradients_of_gradients():
    def make():
        x = leaf(4, 3)
        result = x * 1
        return [x], [result[:3], result[1:]]

    assert_like_eager(_moved, make)
