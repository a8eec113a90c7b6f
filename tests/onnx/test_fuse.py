"""Functions that people write out by hand are recognized, and nothing that only looks like them."""

import math

import pytest
import torch
from torch import nn

from precast.onnx import export


def operators(function, *args, **options) -> list[str]:
    return [node.op_type for node in export(function, args, **options).model.graph]


GELUS = [
    lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5))),
    lambda x: x * (0.5 * (torch.erf(x / math.sqrt(2.0)) + 1.0)),
    lambda x: (x * (1.0 + torch.erf(x / math.sqrt(2.0)))) * 0.5,
    lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    lambda x: x * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x)))),
]


@pytest.mark.parametrize("gelu", GELUS)
def test_gelu(gelu):
    assert operators(gelu, torch.randn(3, 4)) == ["Gelu"]


def test_gelu_stays_written_out_where_the_opset_has_none():
    assert "Gelu" not in operators(GELUS[0], torch.randn(3), opset=18)


def test_nothing_is_recognized_without_optimization():
    assert "Gelu" not in operators(GELUS[0], torch.randn(3), optimize=False)


def test_another_constant_is_no_gelu():
    assert "Gelu" not in operators(lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.5)), torch.randn(3))


class HandWrittenNorm(nn.Module):
    def __init__(self, way: str, width: int = 8):
        super().__init__()
        self.way = way
        self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        if self.way == "pow":
            return self.weight * ((x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)) + self.bias
        if self.way == "multiply":
            centered = x - mean
            return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-6) * self.weight + self.bias
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


@pytest.mark.parametrize("way", ["pow", "multiply", "var"])
def test_layer_normalization(way: str):
    assert operators(HandWrittenNorm(way), torch.randn(3, 8)) == ["LayerNormalization"]


def test_a_scale_that_broadcasts_is_no_layer_normalization():
    assert "LayerNormalization" not in operators(HandWrittenNorm("pow", width=1), torch.randn(3, 8))


def attend(query, key, value):
    return torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(8), -1) @ value


def attend_masked(query, key, value, mask):
    return torch.softmax(torch.matmul(query, key.transpose(-1, -2)) * 0.3 + mask, -1) @ value


def test_attention():
    query, key, value = (torch.randn(2, 4, length, 8) for length in (5, 6, 6))
    assert operators(attend, query, key, value, opset=23) == ["Attention"]
    assert operators(attend_masked, query, key, value, torch.randn(2, 1, 5, 6), opset=23) == ["Attention"]


def test_attention_needs_four_dimensions():
    query = torch.randn(4, 5, 8)
    assert "Attention" not in operators(attend, query, query, query, opset=23)


def test_attention_needs_softmax_along_keys():
    query = torch.randn(2, 4, 5, 8)
    assert "Attention" not in operators(lambda q: torch.softmax(q @ q.transpose(-1, -2), 1) @ q, query, opset=23)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1e-12,
        lambda x: 1e-12 + x,
        lambda x: x - 1e-10,
        lambda x: x / (x.abs() + 1e-12),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_near_zero_are_not_taken_for_it(function, dtype: torch.dtype):
    x = torch.zeros(2, dtype=dtype)
    torch.testing.assert_close(export(function, (x,), verify=False)(x)[0], function(x), rtol=1e-6, atol=0)


def test_what_changes_nothing_is_left_out():
    program = export(lambda x: ((x + 0.0) * 1.0 - 0.0) / 1.0 + 2.0, (torch.ones(2),))
    assert [node.op_type for node in program.model.graph] == ["Add"]
