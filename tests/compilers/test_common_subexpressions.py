"""fx_graph_cse merges equal expressions, and only those."""

import pytest
import torch
from torch import fx

from precast.compilers import fx_graph_cse


def traced(trace, function, *inputs):
    graph_module, _ = trace(function, *inputs)
    return graph_module, fx.GraphModule(graph_module, fx_graph_cse(graph_module.graph))


def count(graph_module, target):
    return len(graph_module.graph.find_nodes(op="call_function", target=target))


def build(body, inputs=1):
    """Return a graph module with ``body(graph, *placeholders)`` as written: the tracer would functionalize it."""
    graph = fx.Graph()
    graph.output(body(graph, *(graph.placeholder(f"x{index}") for index in range(inputs))))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_equal_expressions_are_computed_once(trace):
    def function(x):
        return torch.sin(x) * 2 + torch.sin(x) * 2

    before, after = traced(trace, function, torch.ones(3))
    assert count(before, torch.ops.aten.sin.default) == 2
    assert count(after, torch.ops.aten.sin.default) == 1
    assert count(after, torch.ops.aten.mul.Tensor) == 1
    x = torch.randn(3)
    torch.testing.assert_close(after(x), function(x), rtol=0, atol=0)


def test_given_graph_is_left_as_it_was(trace):
    before, _ = traced(trace, lambda x: torch.sin(x) + torch.sin(x), torch.ones(3))
    assert count(before, torch.ops.aten.sin.default) == 2


def test_metadata_is_kept(trace):
    _, after = traced(trace, lambda x: torch.sin(x) + torch.sin(x), torch.ones(3))
    assert all("val" in node.meta for node in after.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0.0, -0.0)])
def test_numbers_that_compare_equal_but_mean_something_else_are_kept_apart(trace, one, other):
    _, after = traced(trace, lambda x: torch.div(x, one) + torch.div(x, other), torch.ones(3, dtype=torch.int32))
    assert count(after, torch.ops.aten.div.Tensor) == 2


def test_nan_arguments_are_equal(trace):
    _, after = traced(trace, lambda x: (x * float("nan")) + (x * float("nan")), torch.ones(3))
    assert count(after, torch.ops.aten.mul.Tensor) == 1


def test_keyword_arguments_count(trace):
    _, after = traced(trace, lambda x: torch.add(x, x, alpha=2) + torch.add(x, x, alpha=3), torch.ones(3))
    assert count(after, torch.ops.aten.add.Tensor) == 3


def test_random_ops_are_never_merged(trace):
    _, after = traced(trace, lambda x: (torch.rand_like(x) + torch.rand_like(x)).sum(), torch.ones(3))
    assert count(after, torch.ops.aten.rand_like.default) == 2


def test_two_equal_outputs_stay_two_tensors(trace):
    _, after = traced(trace, lambda x: (torch.sin(x), torch.sin(x)), torch.ones(3))
    first, second = after(torch.ones(3))
    first.zero_()
    assert second.ne(0).all()


def test_views_of_equal_values_returned_both_stay_apart(trace):
    _, after = traced(trace, lambda x: (torch.sin(x).view(-1), torch.sin(x).t()), torch.ones(3, 2))
    first, second = after(torch.ones(3, 2))
    first.zero_()
    assert second.ne(0).all()


def test_equal_views_of_a_result_are_merged_unless_they_are_returned(trace):
    def fn(x):
        y = x.sin()
        return y, y[0].exp() + y[0].cos()

    _, after = traced(trace, fn, torch.ones(2, 2))
    assert count(after, torch.ops.aten.select.int) == 1


def test_output_and_inner_value_are_merged(trace):
    _, after = traced(trace, lambda x: (torch.sin(x), torch.sin(x).cos()), torch.ones(3))
    assert count(after, torch.ops.aten.sin.default) == 1


def test_three_equal_values_of_which_two_are_returned_become_two(trace):
    _, after = traced(trace, lambda x: (torch.sin(x).cos(), torch.sin(x), torch.sin(x)), torch.ones(3))
    assert count(after, torch.ops.aten.sin.default) == 2


def test_value_read_before_and_after_a_mutation_is_read_twice():
    def body(graph, x):
        before = graph.call_function(torch.ops.aten.sin.default, (x,))
        graph.call_function(torch.ops.aten.zero_.default, (x,))
        after = graph.call_function(torch.ops.aten.sin.default, (x,))
        return graph.call_function(torch.ops.aten.sub.Tensor, (before, after))

    module = build(body)
    merged = fx.GraphModule(module, fx_graph_cse(module.graph))
    torch.testing.assert_close(merged(torch.ones(2)), module(torch.ones(2)), rtol=0, atol=0)


def test_value_that_is_mutated_is_not_shared():
    def body(graph, x):
        one = graph.call_function(torch.ops.aten.sin.default, (x,))
        other = graph.call_function(torch.ops.aten.sin.default, (x,))
        view = graph.call_function(torch.ops.aten.view.default, (one, [-1]))
        graph.call_function(torch.ops.aten.zero_.default, (view,))
        return graph.call_function(torch.ops.aten.neg.default, (other,))

    module = build(body)
    merged = fx.GraphModule(module, fx_graph_cse(module.graph))
    torch.testing.assert_close(merged(torch.ones(2)), -torch.ones(2).sin(), rtol=0, atol=0)


def test_effectful_ops_run_as_often_as_before():
    def body(graph, x):
        for _ in range(2):
            graph.call_function(torch.ops.aten._assert_async.default, (x,))
        return x

    module = build(body)
    assert count(fx.GraphModule(module, fx_graph_cse(module.graph)), torch.ops.aten._assert_async.default) == 2


def test_results_of_an_op_with_several_are_merged(trace):
    _, after = traced(trace, lambda x: torch.max(x, 0)[0] + torch.max(x, 0)[0], torch.ones(3, 2))
    assert count(after, torch.ops.aten.max.dim) == 1
