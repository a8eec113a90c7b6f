"""Recurrent layers stay one node, and torch is as before afterwards, also when tracing fails."""

import pytest
import torch
from torch import nn
from torch._decomp import meta_table

from precast.onnx import export
from precast.onnx.capture import whole_recurrent_layers
from precast.trace.capture import Dim

GRU = torch.ops.aten.gru.input


@pytest.mark.parametrize("operator", [nn.GRU, nn.LSTM])
def test_a_layer_is_one_node_of_any_length(operator: type[nn.RNNBase]):
    model = operator(3, 4).eval()
    program = export(model, (torch.randn(5, 2, 3),), dynamic_shapes={"input": {0: Dim("time", min=1)}})
    assert operator.__name__ in [node.op_type for node in program.model.graph]
    x = torch.randn(9, 2, 3)
    torch.testing.assert_close(program.call_as_model(x), model(x))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}])
def test_a_projected_state_is_a_scan_of_any_length(options: dict[str, bool]):
    model = nn.LSTM(3, 4, num_layers=2, proj_size=2, **options).eval()
    program = export(model, (torch.randn(5, 2, 3),), dynamic_shapes={"input": {0: "first", 1: "second"}})
    x = torch.randn(3, 4, 3)
    torch.testing.assert_close(program.call_as_model(x), model(x))


def test_torch_is_put_back_when_tracing_fails():
    kernels = dict(GRU.py_kernels)
    with pytest.raises(ZeroDivisionError), whole_recurrent_layers(nn.GRU(2, 2)):
        _ = 1 / 0
    assert GRU.py_kernels == kernels
    assert GRU not in meta_table


def test_nothing_changes_for_other_modules():
    kernels = dict(GRU.py_kernels)
    with whole_recurrent_layers(nn.Linear(2, 2)):
        assert GRU.py_kernels == kernels
