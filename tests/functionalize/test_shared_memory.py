"""Inputs in the same memory, one of which is written."""

import pytest
import torch

from precast.capture import capture
from precast.errors import InputValueError
from precast.functionalize import functionalize
from precast.ir.interpreter import interpret


def function(a, b):
    a.add_(1)
    return b * 2


base = torch.ones(6)


@pytest.mark.parametrize(
    "args", [(base, base), (base[:4], base[2:]), (base, base[1:2])], ids=["same", "overlapping", "part"]
)
def test_a_write_that_another_input_would_see_is_refused(args):
    with pytest.raises(InputValueError, match="writes into a, which shares memory with b") as failure:
        functionalize(capture(function, args))
    assert "a.add_(1)" in failure.value.at


def test_the_captured_program_itself_is_right():
    values = torch.ones(6)
    torch.testing.assert_close(interpret(capture(function, (base, base)), values, values), torch.full((6,), 4.0))


def test_inputs_side_by_side_in_one_memory_are_fine():
    program = functionalize(capture(function, (base[:3], base[3:])))
    values = torch.ones(6)
    torch.testing.assert_close(interpret(program, values[:3], values[3:]), torch.full((3,), 2.0))
    torch.testing.assert_close(values, torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 1.0]))


def test_sharing_without_writing_is_fine():
    program = functionalize(capture(lambda a, b: a + b, (base, base)))
    torch.testing.assert_close(interpret(program, base, base), torch.full((6,), 2.0))


def test_buffers_that_share_memory():
    class Halves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("front", self.whole[:2])

        def forward(self, x):
            self.whole.add_(1)
            return x + self.front

    with pytest.raises(InputValueError, match="writes into whole, which shares memory with front"):
        functionalize(capture(Halves(), (torch.ones(2),)))
