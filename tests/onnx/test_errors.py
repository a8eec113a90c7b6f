"""Requests that cannot be met are refused with the way out, and leave no file behind."""

import pytest
import torch
from onnxscript import opset18 as op
from onnxscript import opset20 as op20
from torch import nn

from precast.errors import InputValueError, OnnxError, OnnxRuleError, OnnxTypeError, OptionError
from precast.onnx import export
from precast.onnx.element_types import data_type_of
from precast.onnx.rules.registry import rule
from precast.trace.capture import Dim

X = (torch.ones(2),)


@torch.library.custom_op("precast_test_onnx::first", mutates_args=())
def first(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("precast_test_onnx::second", mutates_args=())
def second(x: torch.Tensor) -> torch.Tensor:
    return x * 2


first.register_fake(torch.empty_like)
second.register_fake(torch.empty_like)


def test_all_operators_without_a_rule_are_listed_with_their_lines():
    def function(x):
        x = first(x)
        return second(x)

    with pytest.raises(OnnxRuleError, match="2 operators") as caught:
        export(function, X)
    for told in ("precast_test_onnx::first", "x = first(x)", "precast_test_onnx::second", "return second(x)"):
        assert told in str(caught.value)


@pytest.mark.parametrize("opset", [7, 15, 1000])
def test_opset_out_of_range(opset: int):
    with pytest.raises(OptionError, match=f"opset is {opset}"):
        export(torch.sin, X, opset=opset)


def test_opset_too_old_for_an_operator():
    call = torch.randn(1, 2, 3, 3, 3), torch.rand(1, 2, 2, 2, 3)
    with pytest.raises(OnnxError, match="Opset 18 is too old for aten::grid_sampler_3d"):
        export(lambda x, grid: torch.grid_sampler_3d(x, grid, 0, 0, False), call, opset=18)
    export(lambda x, grid: torch.grid_sampler_3d(x, grid, 0, 0, False), call, opset=20)


def test_opset_too_old_for_a_users_rule():
    table = {torch.ops.aten.sin.default: lambda x: op20.Gelu(x)}
    with pytest.raises(OnnxError, match="Opset 18 is too old for aten::sin") as caught:
        export(torch.sin, X, opset=18, custom_translation_table=table)
    assert "Gelu" in str(caught.value)


@pytest.mark.parametrize("name", ["missing/model.onnx", "."])
def test_unwritable_place_is_told_before_any_work(tmp_path, name: str):
    def never(x):
        raise AssertionError("captured")

    with pytest.raises(InputValueError, match="cannot be written"):
        export(never, X, path=tmp_path / name)


def test_two_dims_of_one_name():
    shapes = {"x": {0: Dim("n", max=8)}, "y": {0: Dim("n", max=9)}}
    with pytest.raises(InputValueError, match="'n'"):
        export(lambda x, y: x.sum() + y.sum(), (torch.ones(2), torch.ones(2)), dynamic_shapes=shapes)


def test_two_outputs_of_one_name():
    with pytest.raises(InputValueError, match="are called same"):
        export(lambda x: (x + 1, x + 2), X, output_names=["same", "same"])


def test_wrong_number_of_names():
    with pytest.raises(InputValueError, match="input_names has 2 entries for 1"):
        export(torch.sin, X, input_names=["a", "b"])


def test_a_type_that_onnx_lacks():
    with pytest.raises(OnnxTypeError, match=r"x has the dtype torch.quint8"):
        data_type_of(torch.quint8, what="x")


def test_unknown_capture():
    with pytest.raises(OptionError, match="capture is 'magic'"):
        export(torch.sin, X, capture="magic")


def test_failure_leaves_no_file(tmp_path):
    table = {torch.ops.aten.sin.default: lambda x: op.Cos(x)}
    with pytest.raises(OnnxError):
        export(torch.sin, X, path=tmp_path / "model.onnx", custom_translation_table=table, verify="custom")
    assert not list(tmp_path.iterdir())


def test_a_second_rule_for_one_operator_is_refused():
    with pytest.raises(AssertionError, match="has a rule"):
        rule("aten::gelu", since=20)(lambda x: x)


def test_wrong_dynamic_shapes_are_told_by_capture():
    with pytest.raises(InputValueError, match="not an argument"):
        export(nn.ReLU(), X, dynamic_shapes={"nobody": {0: Dim("n")}})


def test_a_result_that_a_rule_leaves_out():
    call = torch.tensor([0, 1, 2]), torch.tensor([0, 2]), torch.randn(5, 5)
    with pytest.raises(OnnxRuleError, match="Result 1 of aten::embedding_bag"):
        export(lambda ids, offsets, table: torch.embedding_bag(table, ids, offsets)[1], call)


def test_a_users_rule_that_fails_is_named_with_the_line():
    table = {torch.ops.aten.sin.default: lambda x: op.Add(x, x, x, no_such=1).missing}
    with pytest.raises(OnnxRuleError, match=r"custom's rule <lambda> for aten::sin failed") as caught:
        export(lambda x: x.sin(), X, custom_translation_table=table)
    assert "x.sin()" in str(caught.value)


def test_weights_of_a_dtype_that_onnx_lacks():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2).to(torch.float8_e8m0fnu))

        def forward(self, x):
            return x * self.scale.float()

    with pytest.raises(OnnxTypeError, match=r"scale.* has the dtype torch\.float8_e8m0fnu"):
        export(Holder(), X)
