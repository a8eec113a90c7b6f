"""Operators on element types that ONNX's definitions leave out, or that onnxruntime has no code for on the CPU."""

import onnx
import onnx_ir as ir
import pytest
import torch
from onnxscript import opset18 as op
from torch.nn import functional
from torch.utils import _pytree as pytree

from precast.errors import OnnxMismatchError
from precast.onnx import export

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
WHOLE = torch.tensor([-7, -1, 0, 3, 6])
PLACES = torch.zeros(3, 4, dtype=torch.int64)

FUNCTIONS = [
    lambda x: (functional.softplus(x), x.sin(), functional.gelu(x), x.round()),
    lambda x: (x.topk(2), x.sort(0), x.argmax(1), x.amax()),
    lambda x: (x.softmax(1), x @ x.t(), x.sum(0), functional.layer_norm(x, [4])),
    lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    lambda x: (functional.avg_pool1d(x, 2), functional.conv1d(x[None], x[:, :3, None])),
    lambda x: x.scatter_add(0, PLACES, x),
    lambda x: torch.arange(0, 2, 0.3, dtype=x.dtype) + x[0, 0],
    lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: functional.softplus(x), (x,)),
]


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_halves(function, dtype):
    x = X.to(dtype)
    program = export(function, (x,))
    assert program.verification.checked == ("structure", "example inputs")
    onnx.checker.check_model(program.model_proto, full_check=True)
    actual, expected = program.call_as_model(-x), function(-x)
    torch.testing.assert_close(actual, type(actual)(expected) if isinstance(actual, tuple) else expected)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.amax(), x.argmax(), x.max(0), x.sort()),
        lambda x: (x**3, -x, x * x, x.abs(), x.sign()),
        lambda x: (x.clamp(1, 4), torch.maximum(x, x.flip(0)), torch.where(x > 1, x, 2)),
        lambda x: (x << 1, x >> 1, x >> 2, ~x, x & 3),
        lambda x: (x // 3, x % 3, torch.fmod(x, 3), torch.div(x, 2, rounding_mode="trunc")),
    ],
)
def test_short_whole_numbers(function, dtype):
    x = WHOLE.to(dtype)
    program = export(function, (x,))
    assert "example inputs" in program.verification.checked
    onnx.checker.check_model(program.model_proto, full_check=True)
    torch.testing.assert_close(program.call_as_model(x.flip(0)), function(x.flip(0)))


def test_what_ran_in_wider_types_is_told():
    program = export(lambda x: x * 2, (X.bfloat16(),))
    assert "example inputs" in program.verification.checked
    assert "it ran the operators in wider ones" in str(program.verification)
    assert [node.op_type for node in program.model.graph] == ["Mul"]


def test_types_that_newer_opsets_take_stay():
    kinds = {
        opset: [n.op_type for n in export(torch.sin, (X.bfloat16(),), opset=opset).model.graph] for opset in (20, 22)
    }
    assert kinds == {20: ["Cast", "Sin", "Cast"], 22: ["Sin"]}


DOUBLES = X.double()


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        (torch.nn.Sequential(torch.nn.Conv1d(3, 2, 3), torch.nn.GELU()).double(), "Conv, Gelu"),
        (torch.nn.LSTM(4, 5, bidirectional=True).double(), "LSTM"),
        (lambda x: (functional.gelu(x), x.erf(), x.tan()), "Erf, Gelu, Tan"),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x.tan(), lambda x: x.atan(), (x,)), "Atan, Tan"),
    ],
    ids=["when it is opened", "when it runs", "in definitions of others", "in branches"],
)
def test_float64_runs_in_float32_where_there_are_no_kernels(model, lacking: str):
    program = export(model, (DOUBLES,))
    assert f"float64 in {lacking}: onnxruntime has no kernels, and ran float32" in str(program.verification)
    assert "example inputs" in program.verification.checked
    assert {value.dtype for value in program.model.graph.outputs} == {ir.DataType.DOUBLE}
    torch.testing.assert_close(list(program(-DOUBLES)), pytree.tree_leaves(model(-DOUBLES)), rtol=1e-4, atol=1e-5)


def test_wrong_numbers_are_found_in_float32_too():
    with pytest.raises(OnnxMismatchError, match="tan: it differs"):
        export(
            lambda x: x.tan() + 1,
            (DOUBLES,),
            custom_translation_table={torch.ops.aten.tan.default: lambda x: op.Add(op.Tan(x), op.Tan(x))},
            verify="custom",
        )
