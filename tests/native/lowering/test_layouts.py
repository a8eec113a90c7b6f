"""Images lie channels last between convolutions, and as they did at the program's borders."""

import pytest
import torch
import torch.nn.functional as F

import precast
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


@torch.library.custom_op("tests_layouts::in_memory_order", mutates_args=())
def in_memory_order(image: torch.Tensor) -> torch.Tensor:
    return image.as_strided((image.numel(),), (1,)).clone().view(image.shape)


@in_memory_order.register_fake
def _(image):
    return image.new_empty(image.shape)


@pytest.mark.parametrize(
    "between",
    [in_memory_order, lambda image: image + torch.randn_like(image), lambda image: torch.dropout(image, 0.5, True)],
    ids=["an operator of another library", "random numbers", "dropout"],
)
def test_what_torch_runs_between_convolutions_sees_the_layouts_of_eager(between):
    """Each of these depends on the order of elements in memory, which is another one in images between convolutions."""
    filters = torch.randn(4, 4, 3, 3) / 6

    def program(image):
        return F.conv2d(between(F.conv2d(image, filters)), filters)

    image = torch.randn(2, 4, 8, 8)
    torch.manual_seed(0)
    expected = program(image)
    torch.manual_seed(0)
    torch.testing.assert_close(precast.compile(program, options={"random": "eager"})(image), expected)
