"""Weights in few bits: smaller files, and results that are off by little."""

import re

import pytest
import torch
from torch import nn

from precast.errors import OnnxError, OptionError
from precast.onnx import export


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32, bias=False), nn.LayerNorm(32)).eval()


X = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def program():
    return export(network(), (X,), dynamic_shapes=({0: "batch"},))


def size_of(program, path) -> int:
    program.save(path)
    return path.stat().st_size


@pytest.mark.parametrize(
    ("scheme", "share", "error"), [("int8", 0.35, 0.01), ("int4", 0.25, 0.12), ("dynamic_int8", 0.35, 0.03)]
)
def test_files_are_smaller_and_results_close(program, tmp_path, scheme, share, error):
    small = program.quantized(scheme)
    assert size_of(small, tmp_path / "small.onnx") < share * size_of(program, tmp_path / "large.onnx")
    for x in (X, torch.cat([X, X])):
        (actual,), expected = small(x), network()(x).detach()
        assert float((actual - expected).norm() / expected.norm()) < error
    off = float(re.search(r"off by ([\d.]+)%", str(small.verification))[1])
    assert 0 < off / 100 < error


def test_weights_are_stored_as_whole_numbers(program):
    for scheme, operators in (
        ("int8", "DequantizeLinear"),
        ("int4", "DequantizeLinear"),
        ("dynamic_int8", "MatMulInteger"),
    ):
        model = program.quantized(scheme).model
        assert [node.op_type for node in model.graph].count(operators) == 2
        kinds = {str(value.dtype) for name, value in model.graph.initializers.items() if name.endswith("_quantized")}
        assert kinds == {"INT4" if scheme == "int4" else "INT8"}


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 24, 3, stride=2),
    ).eval()


@pytest.mark.parametrize(
    ("scheme", "operators", "error"),
    [("int8", ["DequantizeLinear"] * 3, 0.01), ("int4", ["DequantizeLinear"] * 3, 0.15),
     ("dynamic_int8", ["ConvInteger"] * 2, 0.03)],
)  # fmt: skip
def test_convolutions(scheme, operators, error):
    model, x = images(), torch.randn(2, 16, 9, 9)
    small = export(model, (x,), dynamic_shapes=({0: "batch", 2: "height"},)).quantized(scheme)
    kinds = [node.op_type for node in small.model.graph]
    assert [kind for kind in kinds if kind in ("DequantizeLinear", "ConvInteger")] == operators
    for call in (x, torch.randn(1, 16, 12, 9)):
        (actual,), expected = small(call), model(call).detach()
        assert float((actual - expected).norm() / expected.norm()) < error


def test_the_original_stays_as_it_was(program):
    before = [node.op_type for node in program.model.graph]
    program.quantized("int8")
    assert [node.op_type for node in program.model.graph] == before
    torch.testing.assert_close(program(X)[0], network()(X).detach(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_quantized_is_told(program):
    with pytest.raises(OptionError, match="'int2'"):
        program.quantized("int2")
    with pytest.raises(OnnxError, match="no weights to quantize"):
        export(torch.sin, (X,)).quantized()


def test_zero_weights_stay_zero():
    model = nn.Linear(64, 64, bias=False).eval()
    nn.init.zeros_(model.weight)
    small = export(model, (X,)).quantized("int8")
    assert not small(X)[0].any()


def test_models_that_are_quantized_already():
    """As PyTorch's own quantization writes them: weights in 8 bits, and what makes floats of them."""
    import torch.ao.quantization.fx._decomposed

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 127, (8, 4), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(8))
            self.register_buffer("zero", torch.zeros(8, dtype=torch.int64))

        def forward(self, x):
            quantized = torch.ops.quantized_decomposed
            x = quantized.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
            x = quantized.dequantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
            weight = quantized.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
            return x @ weight.t()

    program = export(Small(), (torch.randn(3, 4),))
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count("DequantizeLinear") == 2
    assert "example inputs" in program.verification.checked
