"""Results are written where they end up."""

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.loops.program import Kernel
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered, make_entry, open_entries


def tied(x, y, gradient, rows):
    """A product, and the gradient of an embedding of the same weights."""
    return x @ y + torch.ops.aten.embedding_dense_backward(gradient, rows, 5, -1, False)


def inputs():
    generator = torch.Generator().manual_seed(0)
    floats = [torch.randn(shape, generator=generator) for shape in [(5, 3), (3, 4), (3, 4)]]
    return [*floats, torch.tensor([1, 4, 1])]


def test_sums_go_onto_what_they_would_be_added_to():
    program = fuse(lowered(tied, *inputs()))
    written = [step.written for step in program.steps if isinstance(step, Kernel)]
    assert [[each.name for each in buffers] for buffers in written] == [["add"]]
    assert program.temporaries == ()


def test_sums_that_others_read_stay_apart():
    def function(x, y, gradient, rows):
        total = torch.ops.aten.embedding_dense_backward(gradient, rows, 5, -1, False)
        return x @ y + total, total

    program = fuse(lowered(function, *inputs()))
    assert {"add", "embedding_dense_backward"} <= {each.name for each in program.outputs}


def scattered_then_added(write):
    """Something written at chosen places of zeros, and a sum with it."""
    return lambda x, y, values, rows: write(torch.zeros(5, 4), rows, values) + x @ y


WRITES = {
    "put": lambda zeros, rows, values: zeros.index_put((rows,), values),
    "scatter": lambda zeros, rows, values: zeros.scatter(0, rows[:, None].expand(3, 4), values),
    "product": lambda zeros, rows, values: zeros.index_reduce(0, rows, values, "prod"),
    "largest": lambda zeros, rows, values: zeros.scatter_reduce(0, rows[:, None].expand(3, 4), values, "amax"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_only_sums_are_added_onto_something(write):
    function, (x, y, values, _) = scattered_then_added(write), inputs()
    arguments = (x, y, values, torch.tensor([1, 4, 2]))
    (mine,) = interpret(fuse(lowered(function, *arguments)), arguments)
    torch.testing.assert_close(mine, function(*arguments))


@pytest.mark.parametrize("function", [tied, lambda x, y, *_: (x @ y).clone()])
def test_numbers_stay_the_same(function, tmp_path):
    entry = open_entries([make_entry(lowered(function, *inputs()))], tmp_path)["forward"]
    expected = function(*inputs())
    torch.testing.assert_close(list(entry(*inputs())), [*expected] if isinstance(expected, tuple) else [expected])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_product_writes_its_result_in_the_shape_that_is_returned(dynamic):
    x, y = torch.randn(6, 4), torch.randn(4, 5)
    program = fuse(lowered(lambda x, y: (x @ y).unsqueeze(0), x, y, dynamic=dynamic))
    assert [type(step).__name__ for step in program.steps] == ["LibraryCall"]
    assert program.temporaries == ()


def test_a_result_that_is_returned_in_another_order_is_copied():
    x, y = torch.randn(6, 4), torch.randn(4, 5)
    function = lambda x, y: (x @ y).t().contiguous()  # noqa: E731
    program = fuse(lowered(function, x, y))
    torch.testing.assert_close(interpret(program, [x, y])[0], function(x, y))
    assert len(program.steps) == 2


def test_part_of_a_result_is_copied():
    x, y = torch.randn(6, 4), torch.randn(4, 5)
    function = lambda x, y: (x @ y)[:3].unsqueeze(1)  # noqa: E731
    program = fuse(lowered(function, x, y))
    torch.testing.assert_close(interpret(program, [x, y])[0], function(x, y))
