"""Inputs in the same memory, one of which is written."""

import pytest
import torch

import precast
from precast.errors import CaptureError, InputValueError
from precast.graph.interpreter import interpret
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize


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


def fill_expanded(x):
    x.expand(3, 4).fill_(1)
    return x * 2


def write_a_row(x):
    rows = x.expand(3, 4)
    rows[:1].tanh_()
    return rows + 1


def write_windows(x):
    windows = x.flatten().unfold(0, 2, 1)
    windows[0].mul_(2)
    return windows + 1


def write_nothing(x):
    x.expand(3, 4)[3:].mul_(2)
    return x + 1


@pytest.mark.thinned
@pytest.mark.parametrize("is_computed", [True, False])
@pytest.mark.parametrize("write", [fill_expanded, write_a_row, write_windows, write_nothing])
def test_writes_of_elements_that_are_one_place_are_not_captured(write, is_computed):
    def program(x):
        return write(x * 2 if is_computed else x)

    with pytest.raises(CaptureError, match="of which several elements are one place in memory") as failure:
        precast.compile(program, fullgraph=True)(torch.ones(1, 4))
    assert "_(" in failure.value.at
    mine, eagers = torch.arange(4.0)[None], torch.arange(4.0)[None]
    with pytest.warns(precast.GraphBreakWarning):
        torch.testing.assert_close(precast.compile(program)(mine), program(eagers))
    torch.testing.assert_close(mine, eagers)


def test_an_expanded_input_is_not_written():
    def program(x):
        return x.zero_() + 1

    with pytest.raises(CaptureError, match="one place in memory"):
        precast.compile(program, fullgraph=True)(torch.ones(1, 4).expand(3, 4))


OVERLAPPING = {
    "shifted": lambda x: x[:-1].add_(x[1:]),
    "copied": lambda x: x[1:].copy_(x[:-1]),
    "own_row": lambda x: x.sub_(x[0]),
    "turned": lambda x: x.mul_(x.t()),
    "result": lambda x: torch.exp(x[:-1], out=x[1:]),
    "scattered": lambda x: x.index_add_(0, torch.tensor([0, 1]), x[:2]),
}
APART = {
    "same": lambda x: x.add_(x),
    "beside": lambda x: x[:2].add_(x[2:]),
    "between": lambda x: x[::2].mul_(x[1::2]),
    "columns": lambda x: x[:, 2:].copy_(x[:, :2]),
    "nothing": lambda x: x[1:1].add_(x[:0]),
}


@pytest.mark.parametrize("write", OVERLAPPING.values(), ids=OVERLAPPING)
def test_writes_into_a_part_of_what_is_read_are_refused_as_in_eager(write):
    def program(x):
        write(x)
        return x + 1

    for call in (program, precast.compile(program, backend="nop", fullgraph=True)):
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            call(torch.ones(4, 4))


@pytest.mark.parametrize("write", APART.values(), ids=APART)
def test_writes_beside_what_is_read_are_not(write):
    def program(x):
        write(x)
        return x + 1

    mine, eagers = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)
    torch.testing.assert_close(precast.compile(program, backend="nop", fullgraph=True)(mine), program(eagers))
    torch.testing.assert_close(mine, eagers)
