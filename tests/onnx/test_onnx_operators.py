"""Operators of ONNX that a model calls by itself, through ``torch.onnx.ops``."""

import pytest
import torch
from torch.onnx import ops

from precast.errors import OnnxError
from precast.onnx import export

X = torch.randn(2, 3, 4, 8)


def test_an_operator_that_only_its_name_is_known_of():
    def run(x):
        attributes = {"power": 2, "scale": 1.5, "mode": "fast", "axes": [1, 2], "name": "x"}
        return ops.symbolic("mine::Twice", (x, None), attributes, dtype=x.dtype, shape=[1, *x.shape], version=3)

    program = export(run, (X,))
    (node,) = program.model.graph
    assert (node.domain, node.op_type, len(node.inputs)) == ("mine", "Twice", 1)
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        "power": 2, "scale": 1.5, "mode": "fast", "axes": (1, 2), "name": "x",
    }  # fmt: skip
    assert program.model.opset_imports == {"": 20, "mine": 3}
    assert "torch has no numbers" in str(program.verification)


def test_several_results():
    def run(x):
        return ops.symbolic_multi_out(
            "mine::Pair", (x,), dtypes=(torch.float32, torch.int64), shapes=([1], [2, 3]), version=1
        )

    program = export(run, (X,))
    assert [str(value.dtype) for value in program.model.graph.outputs] == ["FLOAT", "INT64"]


def rotate(x, cos, sin, positions):
    return ops.rotary_embedding(x, cos, sin, positions)


CALL = X, torch.randn(50, 4), torch.randn(50, 4), torch.randint(0, 50, (2, 4))


def test_rotary_embeddings():
    program = export(rotate, CALL, opset_version=23)
    assert [node.op_type for node in program.model.graph] == ["RotaryEmbedding"]
    torch.testing.assert_close(program(*CALL)[0], rotate(*CALL))


def test_an_older_opset_is_refused():
    with pytest.raises(OnnxError, match="Opset 20 is too old for onnx::RotaryEmbedding"):
        export(rotate, CALL)


def test_attention():
    program = export(lambda x: ops.attention(x, x, x, is_causal=True)[0], (X,), opset_version=23)
    assert [node.op_type for node in program.model.graph] == ["Attention"]
    assert "example inputs" in program.verification.checked
