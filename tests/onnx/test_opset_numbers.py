"""Models change their opset number only where their operators stay what they are."""

import onnx
import onnx_ir as ir
import pytest
import torch

from precast.errors import OnnxError
from precast.onnx import export, session
from precast.onnx.optimize import renumber


def model_of(operator: str, data_type: int, opset: int, count: int = 1, **attributes: object) -> ir.Model:
    inputs = [onnx.helper.make_tensor_value_info(f"x{number}", data_type, [2]) for number in range(count)]
    node = onnx.helper.make_node(operator, [value.name for value in inputs], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "test", inputs, [onnx.helper.make_empty_tensor_value_info("y")])
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)]))


@pytest.mark.parametrize(("operator", "opset"), [("Relu", 14), ("Celu", 12), ("ReduceLogSum", 18)])
def test_operators_that_only_gained_may(operator: str, opset: int):
    model = model_of(operator, onnx.TensorProto.FLOAT, opset)
    newest = onnx.defs.onnx_opset_version()
    renumber(model, newest)
    assert model.opset_imports[""] == newest
    assert model.ir_version == onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", newest]


@pytest.mark.parametrize(
    ("model", "opset"),
    [
        (model_of("ReduceSum", onnx.TensorProto.FLOAT, 11), 13),  # axes became an input
        (model_of("Softmax", onnx.TensorProto.FLOAT, 11), 13),  # the default axis changed
        (model_of("Upsample", onnx.TensorProto.FLOAT, 9, count=2), 10),  # deprecated
        (model_of("Gelu", onnx.TensorProto.FLOAT, 20), 19),  # not there yet
        (model_of("ReduceLogSum", onnx.TensorProto.INT64, 18), 28),  # no longer takes integers
    ],
)
def test_others_may_not(model: ir.Model, opset: int):
    before = model.opset_imports[""]
    with pytest.raises(OnnxError, match=f"cannot be written for opset {opset}"):
        renumber(model, opset)
    assert model.opset_imports[""] == before


def test_an_opset_newer_than_onnxruntime_is_run_as_the_newest_it_reads(monkeypatch):
    monkeypatch.setattr("precast.onnx.verify.newest_readable_opset", lambda: 20)
    monkeypatch.setattr(session, "newest_readable_opset", lambda: 20)
    program = export(torch.sin, (torch.ones(2),), opset=22)
    assert "onnxruntime reads up to 20" in str(program.verification)
    assert program.model.opset_imports[""] == 22
    torch.testing.assert_close(program.call_as_model(torch.ones(2)), torch.ones(2).sin())
