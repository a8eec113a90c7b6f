"""Verification finds models that are wrong, and says where they go wrong first."""

import sys

import pytest
import torch
from onnxscript import opset18 as op
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from precast.errors import OnnxError, OnnxMismatchError, ToolMissingError
from precast.onnx import export
from precast.onnx.verify import difference, resized
from precast.trace.capture import Dim

aten = torch.ops.aten


def wrong_sin(x):
    return op.Cos(x)


def test_a_wrong_rule_is_found_at_its_node_and_line():
    def function(x):
        y = x.exp()
        y = y.sin()
        return y.sqrt()

    with pytest.raises(OnnxMismatchError, match="first node that differs is sin") as caught:
        export(function, (torch.rand(3),), custom_translation_table={aten.sin.default: wrong_sin}, verify="custom")
    assert "custom's wrong_sin" in str(caught.value)
    assert "y = y.sin()" in str(caught.value)


def test_the_users_rules_are_trusted_and_that_is_said():
    program = export(torch.sin, (torch.rand(3),), custom_translation_table={aten.sin.default: wrong_sin})
    assert program.verification.checked == ("structure",)
    assert "aten::sin means what custom_translation_table says" in str(program.verification)


def test_memory_that_was_not_written_is_not_compared():
    unlike = iter([torch.tensor([2.0])] * 9)

    def memory(x):
        # As if eager's memory held something: while it is captured, the graph shows that it was not written.
        return torch.empty(1) if torch.compiler.is_exporting() or is_fake(x + 0) else next(unlike)

    program = export(memory, (torch.ones(1),))
    assert "aten::empty.memory_format returns uninitialized memory" in str(program.verification)


def test_without_verification_a_wrong_model_is_the_users_own():
    table = {aten.sin.default: wrong_sin}
    program = export(torch.sin, (torch.rand(3),), custom_translation_table=table, verify=False)
    assert program.verification.checked == ()


def test_a_rule_that_is_right_at_the_example_only_is_found_at_another_size():
    table = {aten.sum.default: lambda x, dtype=-1: op.Squeeze(op.Mul(op.ReduceMean(x), 3.0))}
    with pytest.raises(OnnxMismatchError, match="on rows=4"):
        export(
            lambda x: x.sum(),
            (torch.rand(3),),
            dynamic_shapes=({0: Dim("rows")},),
            custom_translation_table=table,
            verify="custom",
        )


def test_what_was_checked_is_told():
    shapes = ({0: Dim("rows", min=2), 1: Dim("columns", min=2)},)
    program = export(torch.sin, (torch.rand(3, 5),), dynamic_shapes=shapes)
    assert program.verification.checked == ("structure", "example inputs", "rows=4, columns=6")


def test_random_models_are_not_compared():
    program = export(nn.Dropout().train(), (torch.rand(3),))
    assert "draws random numbers" in str(program.verification)


def test_an_invalid_model_is_told():
    with pytest.raises(OnnxError, match=r"not valid ONNX|does not accept the model"):
        export(
            torch.sin,
            (torch.rand(3),),
            custom_translation_table={aten.sin.default: lambda x: op.Transpose(x, perm=[3])},
            verify="custom",
        )


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.BatchNorm1d(3)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export(model, (torch.randn(4, 3),))
    torch.testing.assert_close(model.state_dict(), before)
    assert model.training


@pytest.mark.parametrize(
    ("actual", "problem"),
    [
        (torch.ones(2, dtype=torch.float64), "is torch.float64, not torch.float32"),
        (torch.ones(3), "has the shape"),
        (torch.tensor([1.0, 1.1]), "differs at 1 of 2 elements, by up to 0.1"),
        (torch.tensor([1.0, torch.nan]), "differs at 1 of 2"),
    ],
)
def test_differences_in_words(actual, problem):
    assert problem in difference(actual, torch.ones(2))


@pytest.mark.parametrize("value", [torch.tensor([torch.nan, torch.inf]), torch.arange(3), torch.ones(2) > 0])
def test_equal_tensors_do_not_differ(value):
    assert difference(value.clone(), value) is None


def test_resized_tensors_keep_to_the_examples_values():
    assert resized(torch.tensor([[4, 2], [3, 1]]), (3, 1), {}).tolist() == [[4], [3], [4]]
    assert resized(torch.empty(0, 2), (2, 2), {}).shape == (2, 2)


def test_resized_offsets_stay_in_order():
    assert resized(torch.tensor([0, 2, 5]), (5,), {}).tolist() == [0, 2, 5, 5, 5]


def test_without_onnxruntime_the_structure_is_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    program = export(torch.sin, (torch.rand(3),))
    assert program.verification.checked == ("structure",)
    assert "onnxruntime is not installed" in str(program.verification)
    with pytest.raises(ToolMissingError, match="not installed"):
        program.call_as_model(torch.rand(3))


def test_other_choices_among_equal_values_are_no_error():
    program = export(lambda x: x.kthvalue(2, 0), (torch.zeros(4, 3),))
    assert program.verification.checked[0] == "structure"
    if len(program.verification.checked) == 1:
        assert "may choose other indices of equal values" in str(program.verification)


def test_a_path_that_only_eager_takes_is_told():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).eval()
    call = {"src_key_padding_mask": torch.tensor([[False, False, False], [False, True, True]])}
    with pytest.raises(OnnxMismatchError, match="takes another path when it is traced"):
        export(model, (torch.randn(2, 3, 8),), kwargs=call)
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        assert "example inputs" in export(model, (torch.randn(2, 3, 8),), kwargs=call).verification.checked
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
