"""debug_nop runs like eager and says where the promise of tracing was broken."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import precast
from precast.compilers import debug_nop
from precast.errors import NodeMismatchError, PrecastError


def model(x, weight):
    hidden = torch.relu(x @ weight)
    left, right = hidden.split(2, dim=1)
    return left.t() + 1, right.sum(dim=0), x.shape[0]


INPUTS = torch.randn(5, 3), torch.randn(3, 4)


def node_named(graph_module, name):
    return next(node for node in graph_module.graph.nodes if node.name == name)


def assert_same(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_result_is_that_of_eager(trace, dynamic):
    graph_module, fakes = trace(model, *INPUTS, dynamic=dynamic)
    assert_same(debug_nop(graph_module, fakes)(*INPUTS), model(*INPUTS))


def test_symbols_are_bound_to_each_calls_sizes(trace):
    graph_module, fakes = trace(model, *INPUTS, dynamic=True)
    run = debug_nop(graph_module, fakes)
    for rows in (2, 7):
        x = torch.randn(rows, 3)
        assert_same(run(x, INPUTS[1]), model(x, INPUTS[1]))


def test_wrong_dtype_names_node_line_and_both_values(trace):
    graph_module, fakes = trace(model, *INPUTS)
    relu = node_named(graph_module, "relu")
    relu.meta["val"] = relu.meta["val"].to(torch.float64)
    relu.stack_trace = '  File "model.py", line 12, in forward\n    hidden = torch.relu(x @ weight)\n'
    with pytest.raises(NodeMismatchError) as caught:
        debug_nop(graph_module, fakes)(*INPUTS)
    message = str(caught.value)
    assert "node 'relu'" in message
    assert "dtype" in message
    assert "promised torch.float64, got torch.float32" in message
    assert "model.py:12 in forward: hidden = torch.relu(x @ weight)" in message


def test_wrong_size_shows_expression_value_and_binding(trace):
    graph_module, fakes = trace(model, *INPUTS, dynamic=True)
    mm = node_named(graph_module, "mm")
    mm.meta["val"] = mm.meta["val"].new_empty(mm.meta["val"].shape[0] * 2, 4)
    with pytest.raises(NodeMismatchError) as caught:
        debug_nop(graph_module, fakes)(*INPUTS)
    rows = fakes[0].shape[0]
    assert f"promised (2*{rows}, 4) = (10, 4), got (5, 4)" in str(caught.value)
    assert f"{rows} = 5" in str(caught.value)


def test_wrong_stride_is_caught(trace):
    graph_module, fakes = trace(lambda x: x.exp().neg(), torch.ones(2, 3))
    exp = node_named(graph_module, "exp")
    exp.meta["val"] = exp.meta["val"].new_empty_strided((2, 3), (1, 2))
    with pytest.raises(NodeMismatchError, match=r"node 'exp'.*stride.*promised \(1, 2\), got \(3, 1\)"):
        debug_nop(graph_module, fakes)(torch.ones(2, 3))


def test_wrong_device_is_caught(trace):
    graph_module, fakes = trace(torch.exp, torch.ones(2))
    node_named(graph_module, "exp").meta["val"] = torch.empty(2, device="meta")
    with pytest.raises(NodeMismatchError, match=r"device.*promised meta, got cpu"):
        debug_nop(graph_module, fakes)(torch.ones(2))


def test_wrong_number_of_results_is_caught(trace):
    graph_module, fakes = trace(lambda x: x.split(1)[0], torch.ones(2))
    split = node_named(graph_module, "split")
    split.meta["val"] = split.meta["val"][:1]
    with pytest.raises(NodeMismatchError, match=r"number of results.*promised 1, got 2"):
        debug_nop(graph_module, fakes)(torch.ones(2))


def test_wrong_symbolic_value_is_caught(trace):
    graph_module, fakes = trace(lambda x: (x.shape[0] * 2, x), torch.ones(3), dynamic=True)
    node_named(graph_module, "mul").meta["val"] = fakes[0].shape[0] * 3
    with pytest.raises(NodeMismatchError, match=r"node 'mul'.*value"):
        debug_nop(graph_module, fakes)(torch.ones(3))


def test_tensor_promised_but_number_given_is_caught(trace):
    graph_module, fakes = trace(torch.exp, torch.ones(2))
    graph_module.graph.find_nodes(op="placeholder")[0].meta["val"] = 3
    with pytest.raises(NodeMismatchError, match="another type"):
        debug_nop(graph_module, fakes)(torch.ones(2))


def test_input_of_another_size_is_caught_at_the_placeholder(trace):
    graph_module, fakes = trace(torch.exp, torch.ones(2))
    with pytest.raises(PrecastError, match=r"promised \(2\), got \(3,\)") as caught:
        debug_nop(graph_module, fakes)(torch.ones(3))
    assert "traced for another input" in caught.value.why


def test_what_an_op_raises_tells_of_the_node(trace):
    graph_module, fakes = trace(lambda x: x.exp().view(4), torch.ones(2, 2))
    node_named(graph_module, "view").args = (node_named(graph_module, "exp"), [5])
    with pytest.raises(RuntimeError, match="invalid for input of size 4") as caught:
        debug_nop(graph_module, fakes)(torch.ones(2, 2))
    assert "while running node 'view'" in caught.value.__notes__[0]


def test_two_sizes_that_share_a_symbol_must_agree(trace):
    graph_module, fakes = trace(lambda x: x + x.t(), torch.ones(3, 3), dynamic=True)
    with pytest.raises(NodeMismatchError, match="size"):
        debug_nop(graph_module, fakes)(torch.ones(3, 1))


@pytest.mark.parametrize("shape", [(1, 3), (0, 3)])
def test_strides_that_place_no_element_are_ignored(trace, shape):
    graph_module, fakes = trace(torch.exp, torch.ones(shape))
    exp = node_named(graph_module, "exp")
    exp.meta["val"] = exp.meta["val"].new_empty_strided(shape, (17, 1))
    debug_nop(graph_module, fakes)(torch.ones(shape))


def test_data_dependent_sizes_are_bound_when_they_appear(trace):
    def nonzero(x):
        return x.nonzero().sum(dim=1) + 1

    mode_inputs = torch.tensor([0.0, 1.0, 2.0])
    graph_module, fakes = trace_data_dependent(nonzero, mode_inputs)
    torch.testing.assert_close(debug_nop(graph_module, fakes)(mode_inputs), nonzero(mode_inputs))


def trace_data_dependent(function, x):
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv(allow_dynamic_output_shape_ops=True)
    mode = torch._subclasses.FakeTensorMode(shape_env=shape_env)
    fake = mode.from_tensor(x, static_shapes=True)
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=False), mode:
        return torch.fx.experimental.proxy_tensor.make_fx(function)(fake), [fake]


def test_the_public_interpreter_runs_again_with_other_sizes():
    graph = make_fx(lambda x: torch.cat([x, x]), tracing_mode="symbolic")(torch.ones(3))
    interpreter = precast.DebugInterpreter(graph)
    assert [interpreter.run(torch.ones(size)).shape[0] for size in (4, 7)] == [8, 14]
    assert interpreter.binding.describe().endswith("= 7")
