"""Convolutions and their gradients, in all geometries, against eager and float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from precast.native.loops.interpreter import interpret
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import as_tuple, check_case, floats, integers, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten


def forward(*geometry):
    return lambda x, w, b: aten.convolution(x, w, b, *geometry)


def backward(*geometry, mask=(True, True, True)):
    def run(dy, x, w):
        return [each for each in aten.convolution_backward(dy, x, w, [w.shape[0]], *geometry, mask) if each is not None]

    return run


# stride, padding, dilation, transposed, output padding, groups
GEOMETRIES = {
    "1d": ((2, 4, 11), (6, 4, 3), ([2], [1], [1], False, [0], 1)),
    "2d": ((2, 4, 9, 8), (6, 4, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "2d_strided": ((2, 4, 9, 8), (6, 4, 3, 2), ([2, 3], [1, 0], [1, 2], False, [0, 0], 1)),
    "2d_grouped": ((2, 4, 9, 8), (6, 2, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)),
    "2d_depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)),
    "3d": ((1, 2, 5, 6, 4), (3, 2, 2, 3, 1), ([1, 2, 1], [1, 1, 0], [1, 1, 1], False, [0, 0, 0], 1)),
    "transposed": ((2, 4, 5, 6), (4, 3, 3, 3), ([2, 2], [1, 1], [1, 1], True, [1, 0], 1)),
    "transposed_grouped": ((2, 4, 5, 6), (4, 3, 3, 3), ([2, 1], [1, 1], [1, 2], True, [0, 0], 2)),
    "1d_wide": ((1, 32, 9), (48, 32, 3), ([1], [0], [1], False, [0], 1)),
    "2d_wide": ((1, 32, 6, 5), (48, 32, 3, 2), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "2d_wide_points": ((1, 64, 6, 5), (40, 64, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    "transposed_1d": ((2, 4, 5), (4, 3, 3), ([3], [0], [1], True, [0], 1)),
}
CASES = {}
for name, (source, weight, geometry) in GEOMETRIES.items():
    outputs = weight[1] * geometry[-1] if geometry[3] else weight[0]
    for dtype in (torch.float32, torch.float64):
        x, w, b = (floats(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate((source, weight, (outputs,))))
        CASES[f"{name}_{dtype}"] = (forward(*geometry), [x, w, b])
        dy = torch.randn_like(aten.convolution(x, w, None, *geometry))
        mask = (True, True, not geometry[3])
        CASES[f"{name}_backward_{dtype}"] = (backward(*geometry, mask=mask), [dy, x, w])
PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
IMAGE, FILTERS = floats(2, 4, 9, 8), floats(6, 4, 3, 3)
CASES |= {
    "channels_last": (
        forward(*PLAIN), [IMAGE.to(memory_format=torch.channels_last), FILTERS, floats(6)]),
    "of_a_view": (lambda x, w: F.conv2d(x.transpose(2, 3)[:, 1:], w), [floats(2, 5, 9, 8), FILTERS]),
    "with_activation": (lambda x, w, b: F.conv2d(x, w, b).relu() * 2, [IMAGE, FILTERS, floats(6)]),
    "bf16": (lambda x, w: F.conv2d(x, w), [IMAGE.bfloat16(), FILTERS.bfloat16()]),
    "f16": (lambda x, w: F.conv2d(x, w), [IMAGE.half(), FILTERS.half()]),
    "f16_backward": (backward(*PLAIN), [floats(2, 6, 9, 8).half(), IMAGE.half(), FILTERS.half()]),
    "int": (lambda x, w: F.conv2d(x, w), [integers(2, 4, 9, 8), integers(6, 4, 3, 3)]),
    "no_batch": (lambda x, w: F.conv2d(x, w), [floats(0, 4, 9, 8), FILTERS]),
    "of_repeated_gradients": (
        lambda dy, x, w: backward(*PLAIN, mask=(True, True, False))(dy.expand(2, 6, 9, 8), x, w),
        [floats(1, 6, 1, 1), IMAGE, FILTERS]),
    "of_repeated_weights": (lambda x, w: F.conv2d(x, w.expand(6, 4, 3, 3)), [IMAGE, floats(1, 4, 1, 3)]),
    "backward_of_weight": (
        backward(*PLAIN, mask=(False, True, False)), [floats(2, 6, 9, 8), IMAGE, FILTERS]),
}  # fmt: skip


def channels_last(*shape, seed=0):
    return floats(*shape, seed=seed).to(memory_format=torch.channels_last)


# Wide enough, and laid out, for Winograd's way: even and odd sizes, all paddings, channels that fill no block.
WINOGRAD = {
    "even": ((2, 64, 12, 10), (64, 64, 3, 3), 1),
    "odd": ((1, 32, 15, 13), (48, 32, 3, 3), 1),
    "unpadded": ((2, 32, 11, 14), (64, 32, 3, 3), 0),
    "padded_twice": ((1, 48, 9, 16), (32, 48, 3, 3), 2),
    "three_blocks": ((5, 32, 20, 21), (32, 32, 3, 3), 1),
}
for name, (source, weight, padding) in WINOGRAD.items():
    geometry = ([1, 1], [padding, padding], [1, 1], False, [0, 0], 1)
    x, w = channels_last(*source), floats(*weight, seed=1)
    dy = channels_last(*aten.convolution(x, w, None, *geometry).shape, seed=3)
    CASES[f"winograd_{name}"] = (forward(*geometry), [x, w, floats(weight[0], seed=2)])
    CASES[f"winograd_{name}_backward"] = (backward(*geometry), [dy, x, w])
# Depthwise filters wider than 3: their gradient has loops of its own.
DEPTHWISE = {
    "wide": ((2, 32, 9, 12), (7, 7), ([1, 1], [3, 3], [1, 1])),
    "strided": ((1, 16, 13, 10), (5, 5), ([2, 3], [2, 1], [1, 1])),
    "dilated": ((2, 16, 14, 15), (3, 5), ([1, 2], [0, 4], [2, 3])),
    "wider_than_images": ((1, 16, 3, 4), (9, 9), ([1, 1], [4, 4], [1, 1])),
}
for name, (source, filters, (stride, padding, dilation)) in DEPTHWISE.items():
    geometry = (stride, padding, dilation, False, [0, 0], source[1])
    x, w = channels_last(*source), floats(source[1], 1, *filters, seed=1)
    dy = channels_last(*aten.convolution(x, w, None, *geometry).shape, seed=3)
    CASES[f"depthwise_{name}_backward"] = (backward(*geometry, mask=(False, True, False)), [dy, x, w])
CASES["winograd_finished"] = (
    lambda x, w, b, y: (F.conv2d(x, w, b, padding=1) + y).relu(),
    [channels_last(2, 32, 12, 11), floats(32, 32, 3, 3), floats(32), channels_last(2, 32, 12, 11, seed=1)],
)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e38])
def test_what_is_not_finite_stays_where_it_is(model, value):
    x, w, b = CASES["winograd_even"][1]
    x = x.clone()
    x[0, 3, 5, 5] = value
    (ours,), eager = model["winograd_even"](x, w, b), F.conv2d(x, w, b, padding=1)
    assert torch.equal(ours.isfinite(), eager.isfinite())
    assert torch.equal(ours.isnan(), eager.isnan())


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_gradients_that_are_not_finite_stay_where_they_are(model, value):
    dy, x, w = CASES["winograd_even_backward"][1]
    dy = dy.clone()
    dy[1, 7, 4, 9] = value
    for ours, eager in zip(
        model["winograd_even_backward"](dy, x, w), CASES["winograd_even_backward"][0](dy, x, w), strict=True
    ):
        assert torch.equal(ours.isfinite(), eager.isfinite())


@pytest.mark.parametrize("name", ["even", "odd", "three_blocks"])
def test_threads_share_blocks_of_patches(model, name):
    function, inputs = model[f"winograd_{name}"], CASES[f"winograd_{name}"][1]
    results, threads = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results += function(*inputs)
    torch.set_num_threads(threads)
    alone, *shared = results
    assert all(torch.equal(each, alone) for each in shared)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_convolution_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize("name", ["2d_strided_torch.float64", "transposed_backward_torch.float64"])
def test_the_interpreter_agrees(name):
    function, inputs = CASES[name]
    for mine, eager in zip(
        interpret(fuse(lowered(function, *inputs)), inputs), as_tuple(function(*inputs)), strict=True
    ):
        torch.testing.assert_close(mine, eager)
