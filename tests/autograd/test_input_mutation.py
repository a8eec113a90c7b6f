"""Writes into inputs: the graph is functional, the caller's tensors change as in eager."""

import pytest
import torch

from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError
from tests.autograd.like_eager import (
    CompilationCount,
    assert_like_eager,
    constants,
    leaf,
    leaves,
    results_of_leaves,
)


def doubled_in_place(x, y):
    x.mul_(2)
    return x + y


def row_doubled_in_place(x, y):
    x[0].mul_(2)
    return (x * y).sum(), x.t()


def both_written(x, y):
    x.add_(y)
    y.mul_(x)
    return x.sin()


def written_twice(x, y):
    x.add_(1)
    x.mul_(y)
    return x.exp()


def only_written(x, y):
    x.copy_(y)


def written_under_no_grad(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * y


def written_through_detach(x, y):
    x.detach().mul_(2)
    return y * 3


def written_through_data(x, y):
    x.data.mul_(2)
    return y * 3


def indexed(x, y):
    x[0, 1] = y[1, 1]
    return x * 2


def filled(x, y):
    x.zero_()
    return x + y


VISIBLE = [doubled_in_place, row_doubled_in_place, both_written, written_twice, only_written, indexed, filled]
HIDDEN = [written_under_no_grad, written_through_detach, written_through_data]


@pytest.mark.thinned
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [results_of_leaves, constants])
@pytest.mark.parametrize("function", [*VISIBLE, *HIDDEN])
def test_written_input_is_as_in_eager(function, make, dynamic):
    assert_like_eager(function, make, dynamic=dynamic)


@pytest.mark.parametrize("function", HIDDEN)
def test_hidden_write_into_a_leaf_that_requires_grad(function):
    assert_like_eager(function, leaves)


def test_first_input_constant_second_differentiable():
    def inputs():
        x, y = leaf(3, 3).detach(), leaf(3, 3)
        return [y], [x, y * 1]

    assert_like_eager(doubled_in_place, inputs)
    assert_like_eager(written_twice, inputs)
    assert_like_eager(both_written, inputs)


def test_graph_is_functional_and_returns_the_update_first():
    count = CompilationCount()
    x = leaf(3)
    aot_function(lambda x: x.mul_(2).sin(), count)(x * 1)
    forward = count.graphs[0].graph
    assert not any(node.op == "call_function" and node.target._schema.is_mutable for node in forward.nodes)
    assert [node.name for node in forward.output_node().args[0][:2]] == ["mul", "sin"]


def test_write_counts_as_one_version():
    x = leaf(3).detach()
    aot_function(lambda x: x.add_(1).mul_(2).sum(), nop)(x)
    assert x._version == 1


def test_unwritten_input_keeps_its_version():
    x, y = leaf(3).detach(), leaf(3).detach()
    aot_function(lambda x, y: x.add_(y).sum(), nop)(x, y)
    assert (x._version, y._version) == (1, 0)


def test_write_under_no_grad_leaves_the_callers_tensor_without_history():
    x = leaf(3)
    aot_function(written_under_no_grad, nop)(x, torch.ones(3))
    assert x.is_leaf
    assert x.grad_fn is None


def test_gradient_flows_through_the_update_alone():
    x = leaf(3)
    y = x * 1
    aot_function(_triple, nop)(y)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))


def _triple(y):
    y.mul_(3)


def test_leaf_that_requires_grad_is_refused_as_in_eager():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        aot_function(doubled_in_place, nop)(leaf(3), leaf(3))


def test_view_of_leaf_that_requires_grad_is_refused_as_in_eager():
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        aot_function(doubled_in_place, nop)(leaf(3, 3)[0], leaf(3))


def test_expanded_input_is_refused_as_in_eager():
    x = torch.ones(1).expand(3)
    for run in (doubled_in_place, aot_function(doubled_in_place, nop)):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            run(x, torch.ones(3))


def test_view_passed_in_updates_its_base_as_in_eager():
    def inputs():
        base = leaf(3, 3)
        whole = base * 1
        return [base], [whole[1], leaf(3), whole]

    def function(row, y, _):
        row.mul_(y)
        return row.sin()

    def function_of_two(row, y):
        row.mul_(y)
        return row.sin()

    assert_like_eager(function, inputs)
    torch.manual_seed(0)
    base = leaf(3, 3)
    whole, again = base * 1, base * 1
    factor = leaf(3)
    aot_function(function_of_two, nop)(whole[1], factor)
    function_of_two(again[1], factor)
    assert torch.equal(whole, again)
    assert torch.equal(*(torch.autograd.grad(t.sin().sum(), base)[0] for t in (whole, again)))


def transposed(x, y):
    x.t_()
    return x * y


def squeezed(x, y):
    x.unsqueeze_(0)
    return x.sum(), y


def transposed_and_doubled(x, y):
    x.t_()
    x.mul_(2)
    return x * y


def doubled_and_transposed(x, y):
    x.mul_(2)
    x.t_()
    return x * y


def transposed_twice(x, y):
    x.t_()
    x.t_()
    return x * y


@pytest.mark.thinned
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [results_of_leaves, constants])
@pytest.mark.parametrize(
    "function", [transposed, squeezed, transposed_and_doubled, doubled_and_transposed, transposed_twice]
)
def test_metadata_changes_reach_the_callers_tensor(function, make, dynamic):
    assert_like_eager(function, make, dynamic=dynamic)


def test_resize_to_fewer_elements():
    assert_like_eager(lambda x, y: (x.resize_(2, 2), y)[1], constants)


def test_resize_to_more_elements_gives_the_callers_tensor_room():
    x = torch.zeros(3)

    def function(x):
        x.resize_(5)
        x.fill_(7)

    aot_function(function, nop)(x)
    assert torch.equal(x, torch.full((5,), 7.0))


def resized_as(x, y):
    x.resize_as_(y)
    return x * 2


def added_out(x, y):
    torch.add(y, y, out=x)
    return x * 2


def multiplied_out(x, y):
    torch.mm(y.t(), y, out=x)


@pytest.mark.parametrize("sizes", [(0,), (2, 3), (4, 3), (5, 3)], ids=str)
@pytest.mark.parametrize("function", [added_out, multiplied_out])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_resizes_the_callers_tensor(function, sizes):
    assert_like_eager(function, lambda: ([], [torch.zeros(sizes), torch.arange(12.0).view(4, 3)]))


def test_resize_as_another_tensor():
    assert_like_eager(resized_as, lambda: ([], [torch.arange(12.0).view(4, 3), torch.zeros(5)]))


def test_set_and_then_an_update_with_gradients_is_refused():
    def function(x, y):
        with torch.no_grad():
            x.set_(y)
        x.mul_(2)
        return x + y

    x, y = (torch.ones(3, requires_grad=True).clone() for _ in range(2))
    with pytest.raises(CaptureError, match="points an input at other memory"):
        aot_function(function, nop)(x, y)


def test_set_to_an_intermediate():
    def function(x, y):
        z = y * 3
        x.set_(z)
        return x + 1

    assert_like_eager(function, constants)


def _squeezed_and_added(x, y):
    view = (x * 1)[None]
    view.squeeze_(0)
    view += y
    return view.sin()


def _transposed_and_written(x, y):
    whole = x * 1
    view = whole[:2]
    view.t_()
    view[0].mul_(2)
    return whole.sin(), view, y


def _written_below_a_transposed_view(x, y):
    whole = x * 1
    view = whole[:2]
    view.transpose_(0, 1)
    whole.mul_(y)
    return view.sin(), whole


def _unsqueezed_input(x, y):
    x.unsqueeze_(0)
    x[0, 1].mul_(y[0])
    return x.sum(0)


@pytest.mark.parametrize(
    "function",
    [_squeezed_and_added, _transposed_and_written, _written_below_a_transposed_view, _unsqueezed_input],
)
def test_gradients_of_views_whose_sizes_change_in_place(function):
    """Autograd replayed the view as it was made, and wrote gradients where others belong."""
    assert_like_eager(function, results_of_leaves)


def _data_assigned(x, y):
    x.data = y.detach() * 2
    return x.sum()


def _pointed_elsewhere(x, y):
    with torch.no_grad():
        x.set_(y.clone())
    return x * 2


@pytest.mark.parametrize("function", [_data_assigned, _pointed_elsewhere])
def test_gradients_end_in_a_leaf_that_has_other_memory(function):
    assert_like_eager(function)
