"""Compiling through TorchScript."""

import warnings

import pytest
import torch

from precast.compilers import simple_ts_compile, torchscript, ts_compile

COMPILERS = [ts_compile, simple_ts_compile]


def model(x, weight):
    rows = x.shape[0]
    scale = torch.full((rows, 1), 2.0, device="cpu")
    return (x @ weight * scale).to(torch.float64), torch.relu(x).mean(), rows


def compiled(compiler, trace, function, *inputs, dynamic=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compiler(*trace(function, *inputs, dynamic=dynamic))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_result_is_that_of_eager(trace, compiler, dynamic):
    inputs = torch.randn(5, 3), torch.randn(3, 4)
    run = compiled(compiler, trace, model, *inputs, dynamic=dynamic)
    for _ in range(3):  # TorchScript profiles two calls, then optimizes
        for result, expected in zip(run(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(result, expected)


def test_symbolic_sizes_serve_other_sizes(trace):
    run = compiled(ts_compile, trace, model, torch.randn(5, 3), torch.randn(3, 4), dynamic=True)
    inputs = torch.randn(9, 3), torch.randn(3, 4)
    torch.testing.assert_close(run(*inputs)[0], model(*inputs)[0])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_whole_numbers_among_the_inputs_are_typed(trace, compiler):
    graph_module, fakes = trace(lambda x: x.view(x.shape[0] * 2, 1), torch.randn(4, 2), dynamic=True)
    graph = graph_module.graph
    with graph.inserting_after(graph.find_nodes(op="placeholder")[0]):
        size = graph.placeholder("size")
    sym_size = next(node for node in graph.nodes if "sym_size" in node.name)
    sym_size.replace_all_uses_with(size)
    graph.erase_node(sym_size)
    graph_module.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = compiler(graph_module, [*fakes, fakes[0].shape[0]])
    x = torch.randn(6, 2)
    torch.testing.assert_close(run(x, 6), x.view(12, 1))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_none_beside_tensors_in_a_list_is_returned(trace, compiler):
    graph_module, fakes = trace(lambda x: [x + 1, None], torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, nothing = compiler(graph_module, fakes)(torch.ones(2))
    assert nothing is None
    torch.testing.assert_close(result, torch.full((2,), 2.0))


def test_given_graph_is_left_as_it_was(trace):
    graph_module, fakes = trace(model, torch.ones(5, 3), torch.ones(3, 4))
    before = graph_module.code
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ts_compile(graph_module, fakes)
    assert graph_module.code == before
    assert any(node.target is torch.ops.aten.mm.default for node in graph_module.graph.nodes)


def test_real_example_inputs_are_accepted(trace):
    graph_module, _ = trace(torch.exp, torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = ts_compile(graph_module, [torch.ones(2)])
    torch.testing.assert_close(run(torch.zeros(2)), torch.ones(2))


def test_deprecation_is_told_once_and_torchs_own_warnings_not_at_all(trace):
    torchscript._warn_once.cache_clear()
    graph_module, fakes = trace(torch.exp, torch.ones(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts_compile(graph_module, fakes)
        simple_ts_compile(graph_module, fakes)
    assert [warning.category for warning in caught] == [FutureWarning]
    assert "TorchScript is deprecated" in str(caught[0].message)
