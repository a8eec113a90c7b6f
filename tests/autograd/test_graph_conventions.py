"""What compilers written for PyTorch rely on in the graphs they get."""

import ast

import pytest
import torch
from torch import fx, nn
from torch.fx.traceback import annotate

from precast.autograd import (
    aot_function,
    aot_module,
    get_aot_graph_name,
    get_graph_being_compiled,
    make_boxed_compiler,
    make_boxed_func,
    set_model_name,
)
from precast.compilers import nop
from precast.errors import InputTypeError
from precast.graph.compilation import get_aot_graph_name as graph_name
from precast.graph.nodes import forward_node_of, module_path_of, source_line_of
from precast.partition import default_partition
from tests.autograd.like_eager import CompilationCount, leaf


def graphs_of(function, *args, **options):
    forward, backward = CompilationCount(), CompilationCount()
    aot_function(function, forward, backward, **options)(*args)
    return forward.graphs[0].graph, backward.graphs[0].graph


def placeholders(graph):
    return [node.name for node in graph.nodes if node.op == "placeholder"]


def results(graph):
    return [getattr(node, "name", node) for node in graph.output_node().args[0]]


def nodes(graph):
    return {node.name: node for node in graph.nodes}


def program(x, y):
    y.mul_(2)
    z = x.sin() * y
    return z.view(-1), z[0], x.exp()


def test_forward_takes_primals_and_returns_updates_outputs_bases_and_saved():
    forward, backward = graphs_of(program, leaf(3, 3), leaf(3, 3) * 1)
    assert placeholders(forward) == ["primals_1", "primals_2"]
    returned = results(forward)
    assert returned[:5] == ["mul", "view", "select", "exp", "mul_1"]
    assert returned[5:] == [name for name in placeholders(backward) if not name.startswith("tangents")]


def test_backward_takes_saved_then_tangents_and_returns_a_gradient_per_primal():
    forward, backward = graphs_of(program, leaf(3, 3), leaf(3, 3) * 1)
    # The update, the fresh output and the base of the views.
    assert placeholders(backward)[-3:] == ["tangents_1", "tangents_2", "tangents_3"]
    assert len(results(backward)) == len(placeholders(forward)) == 2


def test_primal_without_gradient_gets_none():
    _, backward = graphs_of(lambda x, n, y: x * y + n, leaf(3), torch.ones(3), leaf(3))
    assert [result is None for result in results(backward)] == [False, True, False]


def test_backward_takes_sizes_before_tensors():
    _, backward = graphs_of(lambda x: x.sum() * x.shape[0], leaf(5, 3), dynamic=True)
    kinds = [isinstance(node.meta["val"], torch.Tensor) for node in backward.nodes if node.op == "placeholder"]
    assert kinds == sorted(kinds)
    assert not kinds[0]


def test_forward_saves_tensors_before_sizes():
    forward, _ = graphs_of(lambda x: (x.sin().sum() * x.shape[0]).exp(), leaf(5, 3), dynamic=True)
    kinds = [isinstance(node.meta["val"], torch.Tensor) for node in forward.output_node().args[0]]
    assert kinds == sorted(kinds, reverse=True)
    assert not kinds[-1]


def test_joint_graph_reaches_the_partitioner():
    seen = []

    def partition(module, inputs, *, num_fwd_outputs, **options):
        seen.append((placeholders(module.graph), len(results(module.graph)), num_fwd_outputs))
        return default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs, **options)

    graphs_of(lambda x, y: (x * y, x.sin()), leaf(3), leaf(3), partition_fn=partition)
    assert seen == [(["primals_1", "primals_2", "tangents_1", "tangents_2"], 4, 2)]


def test_example_inputs_are_the_fake_values_of_the_placeholders():
    def compiler(module, example_inputs):
        values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        assert len(values) == len(example_inputs)
        assert all(map(lambda value, example: value is example, values, example_inputs))
        assert all(torch._subclasses.fake_tensor.is_fake(example) for example in example_inputs)
        return module

    aot_function(lambda x, y: (x @ y).exp(), compiler)(leaf(3, 3), leaf(3, 3)).sum().backward()


def test_node_names_are_those_of_tracing():
    forward, backward = graphs_of(lambda x: x.sin().sin() * 2, leaf(3))
    assert {"sin", "sin_1", "mul"} <= nodes(forward).keys()
    assert {"cos", "cos_1"} <= nodes(backward).keys()


def test_every_node_carries_its_value_and_the_users_line():
    forward, _ = graphs_of(lambda x: x.sin() * 2, leaf(3))
    for node in forward.nodes:
        if node.op == "call_function":
            assert isinstance(node.meta["val"], torch.Tensor)
            assert __file__ in node.stack_trace


def test_backward_nodes_name_the_forward_op_they_belong_to():
    forward, backward = graphs_of(lambda x: x.sin().exp(), leaf(3))
    cosine = nodes(backward)["cos"]
    assert forward_node_of(cosine) == "sin"
    assert source_line_of(cosine) == source_line_of(nodes(forward)["sin"])


def test_nodes_carry_the_module_path():
    count = CompilationCount()
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)))
    aot_module(model, count)(torch.randn(2, 3)).sum().backward()
    paths = [{module_path_of(n) for n in graph.graph.nodes if n.op == "call_function"} for graph in count.graphs]
    assert {"0", "1.0", "1.1"} <= paths[0]
    assert {"0", "1.0", "1.1"} <= paths[1]


def test_code_is_importable_python_over_aten():
    count = CompilationCount()
    aot_function(lambda x, y: torch.softmax(x @ y, 0)[1:].exp(), count, dynamic=True)(leaf(3, 4), leaf(4, 5)).sum()
    for module in count.graphs:
        ast.parse(module.code)
        scope = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan"), "sym_size": None}
        exec(f"from math import *\nimport operator\n{module.code}", scope)
        assert callable(scope["forward"])
        calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
        assert any(isinstance(call, torch._ops.OpOverload) and call.namespace == "aten" for call in calls)


def test_code_computes_what_the_graph_does():
    count = CompilationCount()
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    result = aot_function(lambda x, y: torch.softmax(x @ y, 0), count)(x, y)
    scope = {"torch": torch}
    exec(count.graphs[0].code, scope)
    assert torch.equal(scope["forward"](count.graphs[0], x, y)[0], result)


def test_decompositions_apply_to_forward_and_backward():
    table = {
        torch.ops.aten.tanh.default: lambda x: 2 * torch.sigmoid(2 * x) - 1,
        torch.ops.aten.tanh_backward.default: lambda gradient, y: gradient * (1 - y * y),
    }
    forward, backward = graphs_of(torch.tanh, leaf(3), decompositions=table)
    assert "sigmoid" in nodes(forward)
    assert not any("tanh" in name for name in (*nodes(forward), *nodes(backward)))


def test_graphs_have_names_and_numbers():
    names = []

    def compiler(module, example_inputs):
        assert get_aot_graph_name() == get_graph_being_compiled() == graph_name()
        names.append(get_aot_graph_name())
        return module

    set_model_name("toy")
    try:
        x = leaf(3)
        compiled = aot_function(lambda x: x.sin().sum(), compiler)
        compiled(x)
        with torch.no_grad():
            compiled(x)
        torch.autograd.grad(compiled(x), x, create_graph=True)
    finally:
        set_model_name("model")
    number = int(names[0].split("__")[1].split("_")[0])
    assert names == [
        f"toy__{number}_forward_0",
        f"toy__{number}_backward_0",
        f"toy__{number + 1}_inference_0",
        f"toy__{number + 2}_forward_1",
        f"toy__{number + 2}_backward_1",
    ]


def test_boxed_functions_get_one_list_and_may_empty_it():
    sizes = []

    def compiler(module, example_inputs):
        def run(inputs):
            values = list(inputs)
            sizes.append(len(inputs))
            inputs.clear()
            return module(*values)

        run._boxed_call = True
        return run

    x, y = leaf(3), leaf(3)
    aot_function(lambda x, y: (x * y, x.view(-1)), compiler)(x, y)[0].sum().backward()
    assert sizes == [2, 3]
    assert torch.equal(x.grad, y.detach())


def test_written_inputs_with_a_callee_that_empties_its_list():
    def compiler(module, example_inputs):
        def run(inputs):
            values = list(inputs)
            inputs.clear()
            return module(*values)

        run._boxed_call = True
        return run

    x = torch.ones(3)
    aot_function(lambda x: x.add_(1), compiler)(x)
    assert torch.equal(x, torch.full((3,), 2.0))


def test_a_compiler_that_returns_nothing_to_call():
    with pytest.raises(InputTypeError, match="The compiler returned an object of type NoneType"):
        aot_function(torch.sin, lambda graph_module, inputs: None)(torch.ones(3))


def test_make_boxed():
    assert make_boxed_func(lambda a, b: a + b)([1, 2]) == 3
    x = torch.ones(3)
    assert torch.equal(aot_function(torch.sin, make_boxed_compiler(nop))(x), x.sin())


@pytest.mark.parametrize("returned", [tuple, list])
def test_compiled_functions_may_return_lists_or_tuples(returned):
    def compiler(module, example_inputs):
        return lambda *inputs: returned(module(*inputs))

    x = leaf(3)
    aot_function(lambda x: (x.sin(), x.cos()), compiler)(x)[0].sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_nodes_say_which_function_was_called_and_what_the_user_noted_also_for_mutations_and_gradients():
    def noted(x, w):
        with annotate({"stage": 1}):
            x.view(-1).add_(w.sum())
        return x.relu() * w

    for graph, expected in zip(graphs_of(noted, leaf(3).detach(), leaf(3)), ({"sum", "add_"}, {"sum"}), strict=True):
        found = [node.meta for node in graph.nodes if node.op == "call_function"]
        assert all(__file__ in meta["stack_trace"] for meta in found)
        called = {meta["torch_fn"][0].rpartition("_")[0] for meta in found if meta.get("custom") == {"stage": 1}}
        assert called >= expected
        assert "relu" not in called


def test_an_update_that_stays_in_the_graph_is_named_after_its_operator_and_has_the_users_line():
    count = CompilationCount()
    aot_function(lambda x: x.mul_(2) + 1, count, keep_inference_input_mutations=True)(torch.ones(3))
    write = nodes(count.graphs[0].graph)["copy_"]
    assert source_line_of(write) == source_line_of(nodes(count.graphs[0].graph)["mul"])


def test_metadata_of_a_graph_that_is_compiled_are_handed_on():
    graph = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    for node in graph.graph.nodes:
        node.meta |= {"custom": {"from": node.name}, "source_fn_stack": [(node.name, node.target)]}
        node.stack_trace = f'  File "model.py", line 7, in {node.name}'
    count = CompilationCount()
    aot_module(graph, count)(torch.randn(2, 3)).sum().backward()
    for compiled in count.graphs:
        for node in (node for node in compiled.graph.nodes if node.op == "call_function"):
            (source,) = node.meta["from_node"]
            assert source.name in ("_0", "_1")
            assert node.meta["custom"] == {"from": source.name}
            assert source_line_of(node).function == source.name
    assert nodes(count.graphs[1].graph)["threshold_backward"].meta["fwd_source_fn_stack"] == [("_1", "1")]
