"""Activations after products and convolutions are eager's for every number, whichever routine applies them."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precast
from precast.native.loops.index import as_index
from precast.native.loops.program import LibraryCall, with_steps
from tests.native.lowering.cases import ACTIVATIONS, floats
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

NUMBERS = (
    0.0, 1.0, -1.0, -1e-30, 1e-45, -3.0, 5.9, 6.0, -88.0, 88.8, -104.0, -1000.0, 1e20, -1e20, 100.0, 3e38, -3e38,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
CHANNELS = len(NUMBERS)
BY_ONEDNN, BY_OWN_LOOPS = 1, 2


def biases(activation):
    # Eager's hardswish multiplies by 6 first: it has no room for the largest numbers.
    return torch.tensor(NUMBERS).clamp(max=5e37 if activation == "hardswish" else math.inf)


def linear(rows):
    return F.linear, [torch.zeros(rows, 64), floats(CHANNELS, 64)]


def convolution(size, *, depth, pixels, groups=1, stride=1, layout=torch.channels_last):
    def function(x, w, b):
        return F.conv2d(x, w, b, stride, size // 2, groups=groups)

    image = torch.zeros(1, depth, pixels, pixels).to(memory_format=layout)
    return function, [image, floats(CHANNELS, depth // groups, size, size)]


# All products are 0, so that biases are what activations get: name → what multiplies, its operands, who is to do it.
PRODUCTS = {
    "few_rows": (*linear(4), None),
    "own_rows": (*linear(16), BY_OWN_LOOPS),
    "many_own_rows": (*linear(200), BY_OWN_LOOPS),
    "packed_rows": (*linear(40), None),
    "onednn": (*linear(520), BY_ONEDNN),
    "batches": (lambda x, w, b: torch.bmm(x, w) + b, [torch.zeros(2, 20, 64), floats(2, 64, CHANNELS)], None),
    "pixels": (*convolution(1, depth=80, pixels=7), None),
    "more_pixels": (*convolution(1, depth=80, pixels=14), None),
    "three_by_three": (*convolution(3, depth=32, pixels=14), None),
    "row_major": (*convolution(3, depth=3, pixels=14, layout=torch.contiguous_format), None),
    "depthwise": (*convolution(3, depth=CHANNELS, pixels=9, groups=CHANNELS), None),
    "strided_depthwise": (*convolution(5, depth=CHANNELS, pixels=9, groups=CHANNELS, stride=2), None),
    "groups": (*convolution(3, depth=8, pixels=9, groups=4), None),
}
FROZEN = ("few_rows", "packed_rows", "onednn", "pixels", "three_by_three", "depthwise", "groups")
TYPES = (torch.float32, torch.bfloat16)
CASES = {f"{product}_{str(dtype)[6:]}": (product, dtype) for dtype in TYPES for product in PRODUCTS}


def parts(name):
    """Each activation of a product, the inputs, and who is to multiply; weights differ, or it would be one product."""
    product, dtype = CASES[name]
    multiply, (x, weights), way = PRODUCTS[product]
    inputs = [x, *(weights + number for number in range(len(ACTIVATIONS))), *map(biases, ACTIVATIONS)]

    def function(x, *others):
        layers = zip(ACTIVATIONS.values(), others[: len(ACTIVATIONS)], others[len(ACTIVATIONS) :], strict=True)
        return [activation(multiply(x, weight, bias)) for activation, weight, bias in layers]

    return function, [each.to(dtype) for each in inputs], way


def entry(name):
    function, inputs, way = parts(name)
    made = make_entry(lowered(function, *inputs, name=name))
    if way is None:
        return made
    steps = [replace(step, numbers=(as_index(way),)) if isinstance(step, LibraryCall) else step
             for step in made.program.steps]  # fmt: skip
    return replace(made, program=with_steps(made.program, steps))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_entries([entry(name) for name in CASES], tmp_path_factory.mktemp("cache"))


def assert_same(ours, eager, activation):
    tolerance = 1e-2 if eager.dtype == torch.bfloat16 else 2e-4
    torch.testing.assert_close(
        ours, eager, equal_nan=True, rtol=tolerance, atol=1e-5, msg=lambda text: f"{activation}: {text}"
    )
    zeros = (ours == 0) & (eager == 0)
    assert torch.equal(ours[zeros].signbit(), eager[zeros].signbit()), f"{activation}: a zero has another sign"


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_eager(model, name):
    function, inputs, _ = parts(name)
    for ours, eager, activation in zip(model[name](*inputs), function(*inputs), ACTIVATIONS, strict=True):
        assert_same(torch.as_tensor(ours), eager, activation)


class Frozen(nn.Module):
    """Each activation of each product, with weights and biases that are constants."""

    def __init__(self, dtype):
        super().__init__()
        names = [name for name, (product, of) in CASES.items() if of == dtype and product in FROZEN]
        self.functions = [parts(name)[0] for name in names]
        self.constants = nn.ModuleList(nn.ParameterList(parts(name)[1][1:]) for name in names)

    def forward(self, *images):
        pieces = zip(self.functions, images, self.constants, strict=True)
        return [function(image, *constants) for function, image, constants in pieces]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@torch.no_grad()
def test_they_are_those_of_eager_if_weights_are_constants(dtype):
    module, images = Frozen(dtype).eval(), [PRODUCTS[product][1][0].to(dtype) for product in FROZEN]
    compiled = precast.compile(module, options={"freeze": True})
    for ours, eager in zip(compiled(*images), module(*images), strict=True):
        for mine, theirs, activation in zip(ours, eager, ACTIVATIONS, strict=True):
            assert_same(mine, theirs, activation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_gelu_of_types_that_eager_computes_itself(dtype):
    numbers = torch.tensor(NUMBERS).to(dtype)
    assert_same(precast.compile(F.gelu)(numbers), F.gelu(numbers), "gelu")
