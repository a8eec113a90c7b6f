"""Convolutions pad by themselves what was padded with zeros before them."""

import pytest
import torch
import torch.nn.functional as F

from precast.native.loops.interpreter import interpret
from precast.native.loops.program import LibraryCall
from precast.native.passes.layouts import fold_padding
from precast.native.passes.tidy import remove_dead
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered

IMAGE, FILTERS = floats(2, 4, 9, 8), floats(6, 4, 3, 3)


def padded_unevenly(x, w):
    return F.conv2d(F.pad(x, (0, 1, 2, 3)), w, stride=2, padding=(1, 0))


def loops_of(program):
    return [step for step in program.steps if not isinstance(step, LibraryCall)]


def test_padding_becomes_the_convolutions_own():
    program = remove_dead(fold_padding(lowered(padded_unevenly, IMAGE, FILTERS)))
    assert not loops_of(program)
    torch.testing.assert_close(interpret(program, [IMAGE, FILTERS])[0], padded_unevenly(IMAGE, FILTERS))


def test_padding_by_nothing_is_no_loop():
    assert not loops_of(fuse(lowered(lambda x, w: F.conv2d(F.pad(x, (0, 0, 0, 0)), w), IMAGE, FILTERS)))


@pytest.mark.parametrize(
    "pads_otherwise",
    [
        lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), value=1.0), w),
        lambda x, w: F.conv2d(F.pad(x, (-1, 1, 1, 1)), w),
        lambda x, w: F.conv2d(F.pad(x[:, :3], (1, 1, 1, 1, 1, 0)), w),
    ],
    ids=["with_ones", "cropped", "channels"],
)
def test_other_padding_stays(pads_otherwise):
    program = fold_padding(lowered(pads_otherwise, IMAGE, FILTERS))
    assert loops_of(program)
    torch.testing.assert_close(interpret(program, [IMAGE, FILTERS])[0], pads_otherwise(IMAGE, FILTERS))


def with_gradients(x, w, dy):
    padded = F.pad(x, (0, 1, 2, 3))
    geometry = ([2, 2], [1, 0], [1, 1], False, [0, 0], 1)
    result = torch.ops.aten.convolution(padded, w, None, *geometry)
    return result, *torch.ops.aten.convolution_backward(dy, padded, w, None, *geometry, [True, True, False])[:2]


def _cases():
    cases = {}
    for channels in (4, 32):
        x, w = floats(2, channels, 9, 8), floats(6, channels, 3, 3)
        dy = torch.randn_like(padded_unevenly(x, w))
        cases[f"forward_{channels}"] = (padded_unevenly, [x, w])
        cases[f"backward_{channels}"] = (with_gradients, [x, w, dy])
    # As Winograd computes it.
    images = floats(1, 32, 12, 11).to(memory_format=torch.channels_last)
    cases["winograd"] = (lambda x, w: F.conv2d(F.pad(x, (0, 2, 1, 0)), w), [images, floats(32, 32, 3, 3)])
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_native_code_pads_as_eager(model, name):
    check_case(model, name, CASES[name], sums=True)
