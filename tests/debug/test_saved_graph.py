"""Saved graphs are plain Python that computes the same."""

import subprocess
import sys

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from precast.compilers import load_graph, load_inputs, save_graph
from precast.debug.saved_graph import load_module, save_example_inputs
from precast.errors import InputTypeError

CONSTANT = torch.tensor([float("inf"), -1.0, 2.0])


def model(x):
    left, right = x.split(2, dim=1)
    filled = torch.full((x.shape[0], 1), float("inf"), device="cpu")
    return left.sum(dim=0), torch.minimum(right, filled), x[:, :3] * CONSTANT, None


def assert_same(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_saved_module_computes_the_same(trace, tmp_path, dynamic):
    graph_module, fakes = trace(model, torch.ones(5, 4), dynamic=dynamic)
    save_graph(graph_module, tmp_path / "graph", fakes)
    x = torch.randn(5, 4)
    assert_same(load_module(tmp_path / "graph")(x), model(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_loaded_graph_has_the_same_ops_and_values(trace, tmp_path, dynamic):
    graph_module, fakes = trace(model, torch.ones(5, 4), dynamic=dynamic)
    loaded = load_graph(save_graph(graph_module, tmp_path / "graph", fakes))
    assert [(node.op, node.target) for node in loaded.graph.nodes if node.op == "call_function"] == [
        (node.op, node.target) for node in graph_module.graph.nodes if node.op == "call_function"
    ]
    assert all("val" in node.meta for node in loaded.graph.nodes if node.op != "output")
    x = torch.randn(5, 4)
    assert_same(loaded(x), model(x))


def test_random_and_creating_ops_stay_ops_when_loaded(trace, tmp_path):
    graph_module, fakes = trace(lambda x: x + torch.rand(2, device="cpu"), torch.ones(2))
    loaded = load_graph(save_graph(graph_module, tmp_path / "graph", fakes))
    assert loaded.graph.find_nodes(op="call_function", target=torch.ops.aten.rand.default)


def test_branches_are_saved_as_classes(tmp_path):
    def function(x):
        return torch.cond(x.sum() > 0, lambda: x + CONSTANT, lambda: x.cos())

    graph_module = make_fx(function)(torch.ones(3))
    folder = save_graph(graph_module, tmp_path / "graph", [torch.ones(3)])
    for module in (load_module(folder), load_graph(folder)):
        torch.testing.assert_close(module(torch.ones(3)), torch.ones(3) + CONSTANT, rtol=0, atol=0)
        torch.testing.assert_close(module(-torch.ones(3)), torch.ones(3).cos(), rtol=0, atol=0)


def test_folder_is_importable_and_needs_only_torch(trace, tmp_path):
    graph_module, fakes = trace(model, torch.ones(5, 4))
    save_graph(graph_module, tmp_path / "graph", fakes)
    code = "import sys; sys.modules['precast'] = None\nimport torch; from graph import FxModule\n"
    code += "print([tuple(result.shape) for result in FxModule()(torch.ones(5, 4))[:3]])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[(2,), (5, 2), (5, 3)]"


def test_folder_runs_by_itself(trace, tmp_path):
    graph_module, fakes = trace(lambda x: x * 2, torch.ones(2))
    folder = save_graph(graph_module, tmp_path / "graph", fakes)
    names = [node.name for node in graph_module.graph.find_nodes(op="placeholder")]
    save_example_inputs(folder, names, [torch.tensor([3.0, 4.0])])
    done = subprocess.run([sys.executable, folder], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "tensor([6., 8.])"


def test_example_inputs_come_back_with_their_types(trace, tmp_path):
    graph = fx.Graph()
    names = [graph.placeholder(name).name for name in ("x", "size", "scale", "flag", "nothing")]
    graph.output(())
    inputs = [torch.ones(2), 3, 0.1, True, None]
    folder = save_graph(fx.GraphModule(torch.nn.Module(), graph), tmp_path / "graph", inputs)
    save_example_inputs(folder, names, inputs)
    loaded = load_inputs(folder)
    assert torch.equal(loaded[0], inputs[0])
    assert loaded[1:] == inputs[1:]
    assert [type(value) for value in loaded[1:]] == [type(value) for value in inputs[1:]]


def test_dotted_attributes_are_saved(tmp_path):
    root = torch.nn.Module()
    root.layer = torch.nn.Linear(2, 2)
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("layer.weight")
    graph.output(graph.call_function(torch.ops.aten.mm.default, (x, weight)))
    folder = save_graph(fx.GraphModule(root, graph), tmp_path / "graph", [torch.ones(1, 2)])
    torch.testing.assert_close(load_module(folder)(torch.ones(1, 2)), torch.ones(1, 2) @ root.layer.weight.detach())


def test_attributes_whose_names_differ_in_dots_alone_are_kept_apart(tmp_path):
    root = torch.nn.Module()
    root.layer = torch.nn.Module()
    root.layer.scale, root.layer_scale = torch.tensor(2.0), torch.tensor(3.0)
    graph = fx.Graph()
    scales = graph.get_attr("layer.scale"), graph.get_attr("layer_scale")
    graph.output(graph.call_function(torch.ops.aten.sub.Tensor, scales))
    folder = save_graph(fx.GraphModule(root, graph), tmp_path / "graph", [])
    assert load_module(folder)().item() == -1.0


def test_module_that_is_no_graph_is_refused(tmp_path):
    root = torch.nn.Module()
    root.layer = torch.nn.Linear(2, 2)
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    with pytest.raises(InputTypeError, match="attribute 'layer' of the graph, of type Linear"):
        save_graph(fx.GraphModule(root, graph), tmp_path / "graph", [torch.ones(1, 2)])


def test_saved_files_hold_no_pickle(trace, tmp_path):
    graph_module, fakes = trace(model, torch.ones(5, 4))
    folder = save_graph(graph_module, tmp_path / "graph", fakes)
    assert {path.name for path in folder.iterdir()} == {
        "__init__.py",
        "__main__.py",
        "inputs.json",
        "module.py",
        "tensors.safetensors",
    }
    assert "pickle" not in (folder / "module.py").read_text()
    assert "torch.load" not in (folder / "module.py").read_text()
