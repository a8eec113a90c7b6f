"""Whole numbers by whole numbers: products and convolutions of activations that were rounded."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import precast
from precast.errors import InputValueError, OptionError
from precast.quantize import QuantizedConv


def bytes_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)


def test_products_of_whole_numbers_are_exact():
    """However many rows, columns and numbers to add up; what is larger than a float can hold is rounded once."""
    pairs = [(bytes_of(rows, depth), bytes_of(columns, depth)) for rows, columns, depth in
             [(1, 33, 64), (3, 16, 100), (9, 40, 5000), (4, 5, 7)]]  # fmt: skip
    # The largest that there is: sums of these must not overflow on the way.
    pairs.append((torch.full((2, 4096), -128, dtype=torch.int8), torch.full((20, 4096), -128, dtype=torch.int8)))

    @precast.compile
    def products(pairs):
        return [functional.linear(left.float(), right.float()) for left, right in pairs]

    for actual, (left, right) in zip(products(pairs), pairs, strict=True):
        assert torch.equal(actual, (left.long() @ right.long().T).float())
    told = str(precast.explain(lambda left, right: functional.linear(left.float(), right.float()), *pairs[0]))
    assert "0 kernels, 1 library call" in told


CONVOLUTIONS = [
    (functional.conv2d, (2, 16, 9, 9), (24, 16, 3, 3), {"padding": 1}),
    (functional.conv2d, (1, 32, 8, 8), (32, 16, 1, 1), {"groups": 2, "stride": 2}),
    (functional.conv1d, (2, 8, 20), (12, 8, 5), {"dilation": 2}),
    (functional.conv3d, (1, 4, 5, 6, 7), (6, 4, 3, 3, 3), {}),
]


def test_convolutions_of_whole_numbers_are_exact():
    pairs = [(bytes_of(*images), bytes_of(*filters)) for _, images, filters, _ in CONVOLUTIONS]

    @precast.compile
    def convolved(pairs):
        return [
            convolve(images.float(), filters.float(), **options)
            for (images, filters), (convolve, _, _, options) in zip(pairs, CONVOLUTIONS, strict=True)
        ]

    for actual, (images, filters), (convolve, _, _, options) in zip(convolved(pairs), pairs, CONVOLUTIONS, strict=True):
        assert torch.equal(actual, convolve(images.long(), filters.long(), **options).float())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2, groups=2), nn.GELU(), nn.Flatten(),
        nn.Linear(768, 100), nn.ReLU(), nn.Linear(100, 40, bias=False),
    ).eval()  # fmt: skip


def images(rows: int) -> torch.Tensor:
    return torch.randn(rows, 16, 10, 10, generator=torch.Generator().manual_seed(rows))


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.thinned
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_rounded_networks_are_close_to_the_original_and_to_eager(activations, freeze):
    model, x = network(), images(3)
    calibration = [images(8), (images(2),)] if activations == "static" else None
    small = precast.quantize(model, "int8", activations=activations, calibration=calibration)
    assert [type(each).__name__ for each in small if hasattr(each, "activations")] == [
        "QuantizedConv", "QuantizedConv", "QuantizedLinear", "QuantizedLinear",
    ]  # fmt: skip
    with torch.no_grad():
        assert distance(small(x), model(x)) < 0.05
        # An element that is half-way between two numbers may become the other one.
        assert distance(precast.compile(small, options={"freeze": freeze})(x), small(x)) < 3e-3


def test_no_loop_makes_floats_of_whole_numbers():
    small = precast.quantize(network(), activations="dynamic")
    with torch.no_grad():
        report = precast.explain(small, images(2))
    assert str(report).count("_codes") >= 4


def test_zeros_and_half_precision_pass():
    small = precast.quantize(nn.Sequential(nn.Linear(64, 64, bias=False)), activations="dynamic").to(torch.bfloat16)
    with torch.no_grad():
        result = precast.compile(small)(torch.zeros(2, 64, dtype=torch.bfloat16))
    assert result.dtype == torch.bfloat16
    assert not result.any()


def test_convolutions_of_one_channel_a_group_are_left_alone():
    model = nn.Sequential(nn.Conv2d(64, 64, 7, groups=64), nn.Conv2d(64, 64, 1))
    small = precast.quantize(model, activations="dynamic")
    assert [type(each) for each in small] == [nn.Conv2d, QuantizedConv]


def test_what_does_not_fit_together_is_told():
    layer = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(OptionError, match="plain int8"):
        precast.quantize(layer, "int4", activations="dynamic")
    with pytest.raises(OptionError, match="calibration"):
        precast.quantize(layer, activations="static")
    with pytest.raises(OptionError, match="one of two ways"):
        precast.quantize(layer, activations="often")
    with pytest.raises(InputValueError, match="never ran 0"):
        precast.quantize(layer, activations="static", calibration=[])
