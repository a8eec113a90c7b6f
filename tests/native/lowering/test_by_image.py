"""Convolutions of large batches go image by image; the numbers and what others see stay."""

import pytest
import torch
import torch.nn.functional as F

from precast.native.loops.interpreter import interpret
from precast.native.loops.program import LibraryCall
from precast.native.passes.memory import plan
from precast.native.targets.cpu.passes import fuse
from precast.native.targets.cpu.passes.batch_tiling import take_image_by_image
from tests.native.lowering.cases import as_tuple, check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered

COUNT = 6
IMAGES = floats(COUNT, 8, 96, 96).to(memory_format=torch.channels_last)
FIRST, SECOND, DEPTHWISE = floats(16, 8, 1, 1), floats(8, 16, 3, 3), floats(16, 1, 3, 3)


def residual(x, first, depthwise, second):
    """An inverted residual: a wide tensor between, and the input once more at the end."""
    wide = F.relu6(F.conv2d(x, first))
    wide = F.relu6(F.conv2d(wide, depthwise, padding=1, groups=16))
    return F.conv2d(wide, second, padding=1) + x


def seen_between(x, first, depthwise, second):
    """What lies between the convolutions is a result too."""
    wide = F.conv2d(x, first)
    return F.conv2d(wide, second, padding=1), wide, depthwise


CASES = {function.__name__: (function, [IMAGES, FIRST, DEPTHWISE, SECOND]) for function in (residual, seen_between)}


def fused(function, inputs, *, dynamic=False):
    return fuse(lowered(function, *inputs, dynamic=dynamic))


def convolutions(program):
    return [step.name for step in program.steps if isinstance(step, LibraryCall)]


def test_one_image_after_the_other():
    program = fused(*CASES["residual"])
    names = convolutions(program)
    assert len(names) == 3 * COUNT
    assert names == names[:3] * COUNT
    assert plan(program).arena_size.constant < IMAGES.nbytes * 2, "one place serves all images"


def test_many_images_go_some_at_a_time():
    function, (_, *filters) = CASES["residual"]
    inputs = [floats(35, 8, 48, 48).to(memory_format=torch.channels_last), *filters]
    program = fused(function, inputs)
    counts = [step.outputs[0].shape[0].constant for step in program.steps if isinstance(step, LibraryCall)]
    assert counts == [3] * 33 + [2] * 3
    torch.testing.assert_close(interpret(program, inputs)[0], function(*inputs), rtol=1e-4, atol=1e-4)


def test_what_others_see_stays_whole():
    assert len(convolutions(fused(*CASES["seen_between"]))) == 2


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay(name):
    function, inputs = CASES[name]
    program = fused(function, inputs)
    for mine, eager in zip(interpret(program, inputs), as_tuple(function(*inputs)), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "inputs",
    [
        [IMAGES[:1], FIRST, DEPTHWISE, SECOND],
        [IMAGES[..., :8, :8].contiguous(), FIRST, DEPTHWISE, SECOND],
    ],
    ids=["one_image", "small"],
)
def test_what_stays_in_a_cache_is_left(inputs):
    program = fused(residual, inputs)
    assert take_image_by_image(program) is program
    assert len(convolutions(program)) == 3


def test_unknown_batches_are_left():
    program = fused(*CASES["residual"], dynamic=True)
    assert len(convolutions(program)) == 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_native_results(model, name):
    check_case(model, name, CASES[name], sums=True)
