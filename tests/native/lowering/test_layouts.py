"""Images lie channels last between convolutions, and as they did at the program's borders."""

import torch
import torch.nn.functional as F

from precast.native.loops.buffers import channels_last_strides, contiguous_strides
from precast.native.loops.interpreter import interpret
from precast.native.passes.layouts import channels_last
from tests.native.lowering.pipeline import lowered

IMAGE, FILTERS = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3)


def two_convolutions(x, w):
    return F.conv2d(F.max_pool2d(F.conv2d(x, w).tanh(), 2), w)


def test_what_lies_between_convolutions_is_channels_last():
    program = channels_last(lowered(two_convolutions, IMAGE, FILTERS))
    images = [each for each in program.temporaries if len(each.shape) == 4 and each.dtype == "f32"]
    assert len(images) >= 3
    assert all(each.strides == channels_last_strides(each.shape) for each in images)


def test_a_result_that_lies_channels_last_passes_it_on():
    def convolved_and_pooled(x, w):
        image = F.conv2d(x, w).contiguous(memory_format=torch.channels_last)
        return image, F.max_pool2d(image.tanh(), 2).sum(1)

    program = channels_last(lowered(convolved_and_pooled, IMAGE, FILTERS))
    images = [each for each in program.temporaries if len(each.shape) == 4 and each.dtype == "f32"]
    assert len(images) >= 2
    assert all(each.strides == channels_last_strides(each.shape) for each in images)


def test_inputs_and_outputs_keep_their_layout():
    program = channels_last(lowered(two_convolutions, IMAGE, FILTERS))
    assert all(each.strides == contiguous_strides(each.shape) for each in (*program.inputs, *program.outputs))


def test_the_numbers_stay_the_same():
    program = channels_last(lowered(two_convolutions, IMAGE, FILTERS))
    torch.testing.assert_close(interpret(program, [IMAGE, FILTERS])[0], two_convolutions(IMAGE, FILTERS))


def test_a_program_without_convolutions_stays_as_it_is():
    program = lowered(lambda x: x.exp() + 1, IMAGE)
    assert channels_last(program) is program
