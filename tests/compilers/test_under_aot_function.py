"""The compilers as aot_function's compilers: values and gradients are those of eager."""

import pytest
import torch

from precast.autograd import aot_function
from precast.compilers import debug_compile, debug_nop, graph_dumper_aot, load_graph, load_inputs, nop, ts_compile

pytestmark = pytest.mark.filterwarnings("ignore:TorchScript is deprecated")


def function(x, weight):
    hidden = torch.nn.functional.silu(x @ weight)
    return hidden.sum(dim=1), hidden.t().contiguous() + x.shape[0]


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((5, 3), (3, 4))]


def assert_same_values_and_gradients(compiled):
    ours, eager = inputs(), inputs()
    results, expected = compiled(*ours), function(*eager)
    torch.testing.assert_close(results, expected)
    for outputs in (results, expected):
        sum(output.square().sum() for output in outputs).backward()
    for value, wanted in zip(ours, eager, strict=True):
        torch.testing.assert_close(value.grad, wanted.grad)


@pytest.mark.thinned
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", [nop, debug_nop, ts_compile, debug_compile], ids=lambda c: c.__name__)
def test_values_and_gradients(compiler, dynamic, capsys):
    assert_same_values_and_gradients(aot_function(function, compiler, dynamic=dynamic))


@pytest.mark.parametrize("dynamic", [False, True])
def test_dumped_graphs_reproduce_the_run(tmp_path, dynamic):
    dumper = graph_dumper_aot("model", tmp_path, dump_example_input=True)
    compiled = aot_function(function, dumper.fw_compiler, dumper.bw_compiler, dumper.partition_fn, dynamic=dynamic)
    assert_same_values_and_gradients(compiled)
    forward, backward, joint = (
        load_graph(folder)(*load_inputs(folder))
        for folder in (tmp_path / "model" / f"model_{kind}_0" for kind in ("forward", "backward", "joint"))
    )
    torch.testing.assert_close(forward[0], function(*inputs())[0].detach())
    torch.testing.assert_close(list(joint[-2:]), list(backward))


def test_dumper_compiles_a_module(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
    x = torch.randn(2, 3)
    compiled = graph_dumper_aot("model", tmp_path)(module, [x])
    torch.testing.assert_close(compiled(x), module(x))
    assert (tmp_path / "model" / "model_joint_0" / "module.py").exists()


def test_dumper_serves_as_a_backend_of_torch_compile(tmp_path):
    def function(x):
        return torch.sin(x) * 2

    x = torch.randn(3, requires_grad=True)
    compiled = torch.compile(function, backend=graph_dumper_aot("model", tmp_path))
    torch.testing.assert_close(compiled(x), function(x))
    assert (tmp_path / "model" / "model_backward_0" / "module.py").exists()
