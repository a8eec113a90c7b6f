"""Tensor specs: what they take from a tensor and how they print."""

import pytest
import torch

from precast.graph.nodes import tensor_of
from precast.graph.tensor_spec import TensorSpec, as_size, describe, dtype_name
from tests.graph.programs import dynamic_program


def test_spec_of_a_tensor():
    spec = TensorSpec.of(torch.ones(2, 3, requires_grad=True).t())
    assert (spec.dtype, spec.shape, spec.strides, spec.requires_grad) == (torch.float32, (3, 2), (1, 3), True)
    assert not spec.is_symbolic


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(2, 3), "f32[2, 3]"),
        (torch.ones((), dtype=torch.int64), "i64[]"),
        (torch.ones(1, dtype=torch.bool), "bool[1]"),
        (torch.ones(2, device="meta"), "f32[2] meta"),
        (torch.ones(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn[2]"),
    ],
)
def test_text(tensor, text):
    assert str(TensorSpec.of(tensor)) == text


def test_strides_in_text():
    assert TensorSpec.of(torch.ones(2, 3)).text(strides=True) == "f32[2, 3] strides=(3, 1)"


def test_sparse_tensors_have_no_strides():
    spec = TensorSpec.of(torch.eye(2).to_sparse())
    assert spec.strides is None
    assert spec.text(strides=True) == "f32[2, 2]"


def test_symbolic_sizes_are_expressions():
    x, y = (tensor_of(node) for node in dynamic_program().placeholders)
    spec = TensorSpec.of(y)
    assert spec.is_symbolic
    assert spec.shape[0] == 2 * as_size(x.shape[0])


def test_values_in_words():
    size = tensor_of(dynamic_program().placeholders[0]).shape[0]
    assert describe((torch.ones(2), None, size)) == f"(f32[2], None, SymInt({size.node.expr}))"


def test_dtype_names_are_short():
    assert [dtype_name(dtype) for dtype in (torch.bfloat16, torch.uint8, torch.complex64)] == ["bf16", "u8", "c64"]
