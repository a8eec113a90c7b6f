"""graph_dumper_aot writes forward, backward and joint graphs that can be imported elsewhere."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from precast.compilers import get_inputs, graph_dumper_aot, load_graph, load_inputs
from precast.errors import InputValueError

FORWARD_INPUTS = [torch.randn(3, 2), torch.randn(2, 4)]


def joint(primals_1, primals_2, tangents_1):
    """The joint graph of ``sin(x) @ weight``."""
    sin = torch.sin(primals_1)
    result = sin @ primals_2
    return result, (tangents_1 @ primals_2.t()) * torch.cos(primals_1), sin.t() @ tangents_1


@pytest.fixture
def joint_graph(trace):
    graph_module, fakes = trace(joint, *FORWARD_INPUTS, torch.ones(3, 4))
    for node in graph_module.graph.find_nodes(op="placeholder"):
        node.name = node.target = node.name.removesuffix("_1")
    graph_module.recompile()
    return graph_module, fakes


def compile_once(dumper, joint_graph):
    """Do what AOT autograd does: partition, compile both halves, and return them."""
    joint_module, fakes = joint_graph
    forward, backward = dumper.partition_fn(joint_module, [fakes[:2], fakes[2:]], num_fwd_outputs=1)
    values = [[node.meta["val"] for node in half.graph.find_nodes(op="placeholder")] for half in (forward, backward)]
    return dumper.fw_compiler(forward, values[0]), dumper.bw_compiler(backward, values[1])


def run_once(forward, backward):
    result, *saved = forward(*FORWARD_INPUTS)
    return result, backward(*saved, torch.ones_like(result))


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_folders_are_named_by_kind_and_index(joint_graph, tmp_path):
    dumper = graph_dumper_aot("model", tmp_path)
    for _ in range(2):
        compile_once(dumper, joint_graph)
    kinds = ["backward", "forward", "joint"]
    assert names(tmp_path / "model") == [f"model_{kind}_{index}" for kind in kinds for index in (0, 1)]


def test_halves_run_as_captured(joint_graph, tmp_path):
    result, gradients = run_once(*compile_once(graph_dumper_aot("model", tmp_path), joint_graph))
    expected, *expected_gradients = joint(*FORWARD_INPUTS, torch.ones(3, 4))
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(list(gradients), expected_gradients)


def test_dumped_joint_graph_is_importable_elsewhere(joint_graph, tmp_path):
    compile_once(graph_dumper_aot("model", tmp_path), joint_graph)
    code = "import torch; from model.model_joint_0 import FxModule\n"
    code += (
        "print([tuple(result.shape) for result in FxModule()(torch.ones(3, 2), torch.ones(2, 4), torch.ones(3, 4))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[(3, 4), (3, 2), (2, 4)]"


def test_random_inputs_fit_each_dumped_graph(joint_graph, tmp_path):
    compile_once(graph_dumper_aot("model", tmp_path), joint_graph)
    for folder in (tmp_path / "model").glob("model_*"):
        load_graph(folder)(*get_inputs(folder / "inputs.json"))


def test_metadata_tells_every_input(joint_graph, tmp_path):
    compile_once(graph_dumper_aot("model", tmp_path), joint_graph)
    metadata = json.loads((tmp_path / "model" / "model_forward_0" / "inputs.json").read_text())["inputs"]
    assert metadata[1] == {
        "name": "primals_2",
        "type": "Tensor",
        "shape": [2, 4],
        "stride": [4, 1],
        "dtype": "float32",
        "device": "cpu",
    }


def test_example_inputs_are_not_saved_unless_asked_for(joint_graph, tmp_path):
    run_once(*compile_once(graph_dumper_aot("model", tmp_path), joint_graph))
    assert not list(tmp_path.rglob("example_inputs*"))


def test_example_inputs_are_those_of_the_first_run(joint_graph, tmp_path):
    forward, backward = compile_once(graph_dumper_aot("model", tmp_path, dump_example_input=True), joint_graph)
    run_once(forward, backward)
    forward(torch.zeros(3, 2), torch.zeros(2, 4))
    saved = load_inputs(tmp_path / "model" / "model_forward_0")
    torch.testing.assert_close(saved, FORWARD_INPUTS, rtol=0, atol=0)


def test_joint_example_inputs_are_put_together(joint_graph, tmp_path):
    run_once(*compile_once(graph_dumper_aot("model", tmp_path, dump_example_input=True), joint_graph))
    saved = load_inputs(tmp_path / "model" / "model_joint_0")
    torch.testing.assert_close(saved, [*FORWARD_INPUTS, torch.ones(3, 4)], rtol=0, atol=0)


def test_real_example_inputs_are_saved_at_once(trace, tmp_path):
    graph_module, _ = trace(torch.exp, torch.ones(2))
    graph_dumper_aot("model", tmp_path, dump_example_input=True).fw_compiler(graph_module, [torch.ones(2)])
    assert torch.equal(load_inputs(tmp_path / "model" / "model_forward_0")[0], torch.ones(2))


def test_graph_without_gradients_takes_an_index_of_its_own(trace, joint_graph, tmp_path):
    dumper = graph_dumper_aot("model", tmp_path)
    dumper.fw_compiler(*trace(torch.exp, torch.ones(2)))
    compile_once(dumper, joint_graph)
    assert names(tmp_path / "model") == ["model_backward_1", "model_forward_0", "model_forward_1", "model_joint_1"]


def test_two_dumps_at_once_do_not_collide(trace, tmp_path):
    graphs = [trace(partial(torch.pow, exponent=power), torch.ones(2)) for power in range(2, 18)]

    def dump(graph):
        return graph_dumper_aot("model", tmp_path).fw_compiler(*graph)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(dump, graphs))
    powers = [load_graph(tmp_path / "model" / f"model_forward_{index}")(torch.full((2,), 2.0)) for index in range(16)]
    assert sorted(value[0].item() for value in powers) == [2.0**power for power in range(2, 18)]


def test_two_processes_dumping_at_once_do_not_collide(tmp_path):
    code = """
import sys, torch
from torch.fx.experimental.proxy_tensor import make_fx
from precast.compilers import graph_dumper_aot
graph_module = make_fx(torch.exp)(torch.ones(2))
for _ in range(20):
    graph_dumper_aot("model", sys.argv[1]).fw_compiler(graph_module, [torch.ones(2)])
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(names(tmp_path / "model")) == 40


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(InputValueError, match="cannot name a folder"):
        graph_dumper_aot(name, tmp_path)
