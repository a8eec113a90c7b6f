"""Graphs for compilers that want to see what the program writes, as it writes it."""

import pytest
import torch

from precast.autograd import aot_function, aot_module_simplified
from precast.compilers import debug_nop
from precast.partition import default_partition, min_cut_rematerialization_partition
from tests.autograd.like_eager import CompilationCount, assert_like_eager, constants, leaf, leaves, results_of_leaves


def writes_intermediate(x, y):
    z = x * y
    z.add_(3)
    z.view(-1).mul_(2)
    return z.sin()


def writes_part_of_copy(x, y):
    z = x.clone()
    z[0].fill_(1)
    return z * y


def reads_before_and_after_a_write(x, y):
    z = x * y
    before = z.exp()
    z.add_(before)
    return z.sin() * before


def writes_input(x, y):
    x.add_(1)
    return x * y


def writes_input_and_returns_its_view(x, y):
    x[0].mul_(y[0])
    return x.view(-1), y.sin()


def changes_shape_of_input(x, y):
    x.t_()
    return x * y


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize(
    ("function", "make"),
    [
        (writes_intermediate, leaves),
        (writes_part_of_copy, leaves),
        (reads_before_and_after_a_write, leaves),
        (writes_input, constants),
        (writes_input, results_of_leaves),
        (writes_input_and_returns_its_view, results_of_leaves),
        (changes_shape_of_input, constants),
    ],
)
def test_graphs_that_write_do_what_eager_does(function, make, partition):
    def compile(function, compiler, **options):
        return aot_function(function, compiler, partition_fn=partition, disable_functionalization=True, **options)

    assert_like_eager(function, make, compiler=debug_nop, compile=compile)


def test_writes_are_nodes_of_the_graph_named_after_their_operators():
    count = CompilationCount()
    aot_function(writes_intermediate, count, disable_functionalization=True)(leaf(3), leaf(3)).sum().backward()
    forward, backward = ([node.name for node in graph.graph.nodes] for graph in count.graphs)
    assert [name for name in forward if name.endswith("_")] == ["add_", "mul_"]
    assert "copy_" in backward


def test_keywords_of_newer_callers_are_taken():
    x = torch.randn(2, 3)
    passed = []

    def pass_over(module, args):
        passed.append(args)
        return torch.nn.Sequential(module, torch.nn.ReLU())

    linear = torch.nn.Linear(3, 3)
    compiled = aot_module_simplified(
        linear,
        [x],
        debug_nop,
        compiler_config_extra=object(),
        ignore_shape_env=True,
        disable_functionalization=True,
        pre_grad_passes=pass_over,
        compile_region_name="region",
    )
    assert passed == [[x]]
    torch.testing.assert_close(compiled(x), linear(x).relu())
