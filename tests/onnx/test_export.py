"""Small models as ONNX: what the model looks like, and that it computes what the original does."""

import onnx
import pytest
import torch
from torch import nn

from precast.onnx import ONNXProgram, export
from precast.trace.capture import Dim


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).eval()


def operators(program: ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def test_perceptron_is_four_nodes():
    assert operators(export(perceptron(), (torch.randn(3, 4),))) == ["Gemm", "Gelu", "LayerNormalization", "Gemm"]


def test_model_computes_what_the_original_does():
    model, x = perceptron(), torch.randn(3, 4)
    torch.testing.assert_close(export(model, (x,)).call_as_model(x), model(x))


def test_inputs_hold_no_weights():
    program = export(perceptron(), (torch.randn(3, 4),))
    assert [value.name for value in program.model.graph.inputs] == ["input"]
    assert set(program.model.graph.initializers) == set(perceptron().state_dict())


def test_weights_share_memory_with_the_module():
    model = perceptron()
    program = export(model, (torch.randn(3, 4),))
    weight = program.model.graph.initializers["0.weight"].const_value
    assert weight.numpy().ctypes.data == model[0].weight.data_ptr()


def test_dynamic_sizes_have_the_users_names():
    program = export(perceptron(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},))
    assert [str(size) for size in program.model.graph.inputs[0].shape] == ["batch", "4"]
    assert [str(size) for size in program.model.graph.outputs[0].shape] == ["batch", "2"]


def test_derived_sizes_are_expressions():
    class Halves(nn.Module):
        def forward(self, x, y):
            return torch.cat([x, y])

    batch = Dim("batch", min=2)
    shapes = {"x": {0: batch}, "y": {0: 2 * batch}}
    program = export(Halves(), (torch.randn(3), torch.randn(6)), dynamic_shapes=shapes)
    assert str(program.model.graph.inputs[1].shape[0]) == "2*batch"
    assert str(program.model.graph.outputs[0].shape[0]) == "3*batch"


@pytest.mark.parametrize("opset", range(18, onnx.defs.onnx_opset_version() + 1))
def test_each_opset(opset: int):
    model, x = perceptron(), torch.randn(3, 4)
    program = export(model, (x,), opset=opset)
    assert program.model.opset_imports == {"": opset}
    assert program.model.ir_version == onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", opset]
    assert "example inputs" in program.verification.checked


def test_names_are_the_users():
    program = export(perceptron(), (torch.randn(3, 4),), input_names=["features"], output_names=["scores"])
    assert program.model.graph.inputs[0].name == "features"
    assert program.model.graph.outputs[0].name == "scores"


def test_outputs_are_named_after_their_place():
    class Two(nn.Module):
        def forward(self, x):
            return {"twice": 2 * x, "pair": (x + 1, None)}

    program = export(Two(), (torch.ones(2),))
    assert [value.name for value in program.model.graph.outputs] == ["twice", "pair_0"]
    result = program.call_as_model(torch.ones(2))
    assert result["twice"].tolist() == [2, 2]
    assert result["pair"][1] is None


def test_a_plain_function():
    program = export(lambda x, scale=2.0: x * scale, (torch.ones(2),))
    assert program.call_as_model(torch.ones(2)).tolist() == [2, 2]


def test_an_input_returned_twice():
    program = export(lambda x: (x, x, x + 1), (torch.ones(2),))
    assert [out.tolist() for out in program.call_as_model(torch.zeros(2))] == [[0, 0], [0, 0], [1, 1]]


def test_updated_state_comes_behind_the_outputs():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    model = Counter()
    program = export(model, (torch.ones(2),))
    assert program.updates == ("updated_count",)
    assert [value.name for value in program.model.graph.outputs] == ["output", "updated_count"]
    assert model.count == 0
    assert program.call_as_model(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x + n,
        lambda x, n: n / 2,
        lambda x, n: torch.where(n > 1.5, x, n),
        lambda x, n: n.cumsum(0) * (n > 1).sum(),
        lambda x, n: torch.cat([x, n]),
        lambda x, n: (n // 2) % 3,
        lambda x, n: n.masked_fill(x > 0, 7),
    ],
)
def test_mixed_dtypes_are_promoted_as_torch_does(function):
    call = torch.randn(4), torch.arange(4)
    torch.testing.assert_close(export(function, call).call_as_model(*call), function(*call))


def test_sizes_are_computed():
    def function(x):
        rows = x.shape[0]
        return x.new_ones(rows // 2 + 1) * (rows % 3) / rows

    program = export(function, (torch.ones(5),), dynamic_shapes=({0: Dim("rows", min=2)},))
    for rows in (2, 5, 8):
        torch.testing.assert_close(program.call_as_model(torch.ones(rows)), function(torch.ones(rows)))


@pytest.mark.thinned
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
@pytest.mark.parametrize("opset", [18, 23])
def test_attention(causal: bool, mask: torch.dtype | None, opset: int):
    if causal and mask:
        pytest.skip("torch takes one of them")
    query, key, value = (torch.randn(2, 3, length, 8) for length in (5, 7, 7))
    bias = None if mask is None else torch.rand(2, 1, 5, 7).gt(0.5).to(mask)

    def attend(query, key, value, bias):
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal)

    program = export(attend, (query, key, value, bias), opset=opset)
    torch.testing.assert_close(program.call_as_model(query, key, value, bias), attend(query, key, value, bias))


@pytest.mark.parametrize("opset", [18, 23])
def test_rows_that_may_look_at_nothing_are_zero(opset: int):
    query, mask = torch.randn(1, 2, 3, 8), torch.tensor([[True] * 3, [False] * 3, [True, False, False]])

    def attend(query, mask):
        return nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    result = export(attend, (query, mask), opset=opset).call_as_model(query, mask)
    assert (result[:, :, 1] == 0).all()
    torch.testing.assert_close(result, attend(query, mask))


def test_attention_with_shared_heads():
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)

    def attend(query, key):
        return nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)

    torch.testing.assert_close(export(attend, (query, key)).call_as_model(query, key), attend(query, key))


def test_report_tells_the_rule_of_each_operator():
    program = export(perceptron(), (torch.randn(3, 4),))
    summary = {operator: (rule, count) for operator, rule, count in program.rule_summary()}
    assert summary["aten::linear"] == ("precast:linear", 2)
    assert summary["aten::gelu"] == ("precast:gelu", 1)


def test_custom_operator_by_a_translation_table():
    from onnxscript import opset18 as op

    @torch.library.custom_op("precast_test_onnx::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    table = {torch.ops.precast_test_onnx.twice.default: lambda x: op.Add(x, x)}
    program = export(
        lambda x: torch.ops.precast_test_onnx.twice(x) + 1, (torch.ones(2),), custom_translation_table=table
    )
    assert program.call_as_model(torch.ones(2)).tolist() == [3, 3]
    assert ("precast_test_onnx::twice", "custom:<lambda>", 1) in program.rule_summary()


def test_a_program_describes_itself_in_few_words():
    program = export(perceptron(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},))
    assert repr(program) == (
        "ONNXProgram(input: FLOAT[batch,4]) -> (output: FLOAT[batch,2]), 4 nodes, opset 20\n"
        "checked: structure, example inputs, batch=4"
    )


def test_sizes_are_read_off_inputs_once():
    def function(x):
        y = x.sin() + 1
        return y.reshape(y.shape[0], -1, 2) * y.shape[0], y.new_ones(y.shape[0])

    program = export(function, (torch.ones(5, 4),), dynamic_shapes=({0: Dim("rows", min=2)},))
    shapes = [node for node in program.model.graph if node.op_type == "Shape"]
    assert [node.inputs[0].name for node in shapes] == ["x"]


def test_custom_rules_for_all_overloads_of_an_operator():
    from onnxscript import opset18 as op

    table = {torch.ops.aten.add: lambda x, y, alpha=1: op.Sub(x, y)}
    program = export(lambda x: (x + x, x + 2), (torch.ones(2),), custom_translation_table=table)
    assert [result.tolist() for result in program(torch.ones(2))] == [[0, 0], [-1, -1]]


def test_operators_of_a_domain_that_nobody_knows():
    from onnxscript import values

    twice = values.Op(values.Opset("mine", 3), "Twice")
    table = {torch.ops.aten.sin.default: lambda x: twice(x, 2.0, power=2)}
    program = export(torch.sin, (torch.ones(2),), custom_translation_table=table)
    (node,) = [node for node in program.model.graph if node.op_type == "Twice"]
    assert (node.domain, node.attributes["power"].value) == ("mine", 2)
    assert program.model.opset_imports == {"": 20, "mine": 3}


def test_a_translation_must_be_a_function():
    with pytest.raises(TypeError, match="one function"):
        export(torch.sin, (torch.ones(2),), custom_translation_table={torch.ops.aten.sin.default: [torch.cos]})
