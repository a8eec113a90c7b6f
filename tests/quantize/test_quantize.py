"""Weights of few bits: what they mean, and what the native backend makes of them."""

import copy
import zipfile

import pytest
import torch
from torch import nn

import precast
from precast.errors import InputValueError, OptionError
from precast.quantize import QuantizedEmbedding, QuantizedLinear

SCHEMES = {
    "int8": ("int8", {}),
    "int8 asymmetric": ("int8", {"symmetric": False}),
    "int8 in groups": ("int8", {"group_size": 32}),
    "int4": ("int4", {}),
    "int4 symmetric": ("int4", {"symmetric": True, "group_size": 32}),
    "int4 in large groups": ("int4", {"group_size": 128}),
}
SHAPES = ((64, 33), (200, 48), (33, 40))


def layer(depth: int, columns: int, scheme: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(depth * columns)
    name, options = SCHEMES[scheme]
    return precast.quantize(nn.Linear(depth, columns, bias=columns % 2 == 0), name, **options).eval().to(dtype)


class Layers(nn.Module):
    """Every scheme at every shape, each on an input of its own."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(*shape, scheme, dtype) for scheme in SCHEMES for shape in SHAPES)

    def inputs(self, rows: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        return [torch.randn(rows, each.in_features, generator=generator) for each in self.layers]

    def forward(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.relu(each(x)) for each, x in zip(self.layers, inputs, strict=True)]


def exact(layers: Layers, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """In double precision over the very numbers that codes mean."""

    def of(each: QuantizedLinear, x: torch.Tensor) -> torch.Tensor:
        bias = None if each.bias is None else each.bias.double()
        return torch.relu(nn.functional.linear(x.double(), each.quantized(torch.float64), bias))

    return [of(each, x) for each, x in zip(layers.layers, inputs, strict=True)]


@pytest.mark.parametrize("freeze", [False, True])
def test_compiled_products_are_those_of_the_numbers_that_codes_mean(freeze):
    layers = Layers()
    compiled = precast.compile(layers, dynamic=True, options={"freeze": freeze})
    for rows in (2, 1, 7, 40):
        inputs = layers.inputs(rows)
        with torch.no_grad():
            for actual, expected in zip(compiled(inputs), exact(layers, inputs), strict=True):
                torch.testing.assert_close(actual.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_half_precision_are_rounded_once(dtype):
    layers = Layers(dtype)
    inputs = [x.to(dtype) for x in layers.inputs(3)]
    with torch.no_grad():
        for actual, expected in zip(precast.compile(layers)(inputs), exact(layers, inputs), strict=True):
            assert actual.dtype == dtype
            torch.testing.assert_close(actual.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_loop_makes_floats_of_codes(scheme):
    """Of weights with a whole number of groups, and of those whose last group is filled up."""
    for shape in ((256, 33), (200, 48)):
        with torch.no_grad():
            told = str(precast.explain(layer(*shape, scheme), torch.randn(5, shape[0])))
        assert "0 kernels, 1 library call, 0 calls back into torch" in told, told


@pytest.mark.parametrize(("scheme", "error"), [("int8", 0.01), ("int4", 0.12)])
def test_quantized_models_are_close_to_the_original(scheme, error):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).eval()
    x = torch.randn(32, 256)
    with torch.no_grad():
        expected, actual = model(x), precast.quantize(model, scheme)(x)
    assert float((actual - expected).norm() / expected.norm()) < error


def test_the_model_stays_as_it_was_and_shares_its_other_tensors():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    quantized = precast.quantize(model)
    assert type(model[0]) is nn.Linear
    assert isinstance(quantized[0], QuantizedLinear)
    assert quantized[1].weight is model[1].weight


def test_layers_are_chosen_by_name_and_kind():
    model = nn.ModuleDict({"first": nn.Linear(64, 64), "head": nn.Linear(64, 64), "small": nn.Linear(4, 4)})
    kinds = {name: type(each) for name, each in precast.quantize(model, skip=["he*"]).named_children()}
    assert kinds == {"first": QuantizedLinear, "head": nn.Linear, "small": nn.Linear}
    only = precast.quantize(model, modules=lambda name, module: name == "head")
    assert type(only["first"]) is nn.Linear


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        self.head.weight = self.table.weight

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(places))


def test_a_shared_weight_is_quantized_once_and_in_8_bits():
    torch.manual_seed(0)
    model = Tied().eval()
    quantized, places = precast.quantize(model, "int4"), torch.tensor([[3, 99], [0, 3]])
    assert isinstance(quantized.table, QuantizedEmbedding)
    assert quantized.table.quantized is quantized.head.quantized
    assert quantized.head.quantized.bits == 8
    with torch.no_grad():
        expected = quantized(places)
        torch.testing.assert_close(expected, model(places), rtol=0.1, atol=0.2)
        torch.testing.assert_close(precast.compile(quantized)(places), expected, rtol=1e-4, atol=1e-4)


def test_layers_of_gpt2_are_linear_layers():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model, x = Conv1D(48, 64), torch.randn(3, 64)
    quantized = precast.quantize(nn.Sequential(model))
    with torch.no_grad():
        torch.testing.assert_close(quantized(x), model(x), rtol=0.1, atol=0.01)


def test_zero_weights_stay_zero():
    model = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(model.weight)
    for scheme in ("int8", "int4"):
        assert not precast.quantize(nn.Sequential(model), scheme)(torch.randn(2, 64)).any()


def test_packages_hold_codes(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval()
    quantized, x = precast.quantize(model, "int4"), torch.randn(2, 512)
    path = precast.package(quantized, (x,), path=tmp_path / "small.precast", samples=False)
    weights = sum(each.nbytes for each in (*quantized.buffers(), *quantized.parameters()))
    assert weights < 0.2 * sum(each.nbytes for each in model.parameters())
    assert zipfile.ZipFile(path).getinfo("weights.safetensors").file_size < weights + 2000
    with torch.no_grad():
        torch.testing.assert_close(precast.runtime.load(path)(x), quantized(x), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_quantized_is_told():
    with pytest.raises(OptionError, match="'int2'"):
        precast.quantize(nn.Linear(64, 64), "int2")
    with pytest.raises(OptionError, match="multiples of 32"):
        precast.quantize(nn.Sequential(nn.Linear(64, 64)), "int4", group_size=48)
    with pytest.raises(InputValueError, match="no layer to quantize"):
        precast.quantize(nn.Sequential(nn.ReLU()))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_few_rows_by_weights_in_bfloat16_are_nearer_than_eager(rows):
    """These go the way that codes go: what is added up, and what follows, is rounded once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 96), nn.GELU(), nn.Linear(96, 65, bias=False)).to(torch.bfloat16).eval()
    x = torch.randn(rows, 200, dtype=torch.bfloat16)
    with torch.no_grad():
        actual, eager = precast.compile(model, dynamic=False)(x).double(), model(x).double()
        exact = copy.deepcopy(model).double()(x.double())
    assert (actual - exact).norm() <= (eager - exact).norm()
