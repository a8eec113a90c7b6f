"""Every compiler on one real graph: a transformer layer's forward and backward."""

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from precast.compilers import (
    debug_compile,
    debug_nop,
    fx_graph_cse,
    load_graph,
    nop,
    save_graph,
    simple_ts_compile,
    ts_compile,
)
from precast.debug.saved_graph import load_module

pytestmark = pytest.mark.filterwarnings("ignore:TorchScript is deprecated")


@pytest.fixture(scope="module")
def step():
    """Return (graph module, inputs, expected results) of a training step without its optimizer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    parameters = dict(layer.named_parameters())

    def function(x, *values):
        state = dict(zip(parameters, values, strict=True))
        loss = torch.func.functional_call(layer, state, (x,)).square().sum()
        return loss, *torch.autograd.grad(loss, values)

    inputs = [torch.randn(2, 5, 16), *(value.detach().clone().requires_grad_() for value in parameters.values())]
    graph_module = make_fx(function, tracing_mode="fake")(*inputs)
    return graph_module, [value.detach() for value in inputs], function(*inputs)


def cse(graph_module, inputs):
    return fx.GraphModule(graph_module, fx_graph_cse(graph_module.graph))


@pytest.mark.parametrize(
    "compiler",
    [nop, debug_nop, ts_compile, simple_ts_compile, debug_compile, cse],
    ids=lambda compiler: compiler.__name__,
)
def test_compiled_step_gives_the_numbers_of_eager(step, compiler, capsys):
    graph_module, inputs, expected = step
    torch.testing.assert_close(list(compiler(graph_module, inputs)(*inputs)), list(expected))


@pytest.mark.parametrize("load", [load_module, load_graph])
def test_saved_step_gives_the_numbers_of_eager(step, tmp_path, load):
    graph_module, inputs, expected = step
    saved = load(save_graph(graph_module, tmp_path / "graph", inputs))
    torch.testing.assert_close(list(saved(*inputs)), list(expected))


def test_cse_computes_a_layer_applied_twice_to_the_same_input_once():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def length(function):
        graph_module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.randn(2, 5, 16))
        return len(fx_graph_cse(graph_module.graph).nodes)

    assert length(lambda x: layer(x) - layer(x)) == length(lambda x: layer(x) - 1)
