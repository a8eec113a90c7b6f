"""Writing into tensors of any size, with every reduction."""

import pytest
import torch

from precast.errors import OnnxError
from precast.onnx import export
from precast.trace.capture import Dim

INDEX = torch.tensor([[0, 1, 1], [2, 0, 1]])


@pytest.mark.thinned
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool):
    def run(x, index, source):
        return x.scatter_reduce(0, index, source, reduce, include_self=include_self)

    columns = {1: Dim("columns", min=2)}
    call = torch.randn(3, 3), INDEX, torch.randn(2, 3)
    program = export(run, call, dynamic_shapes=(columns, columns, columns))
    wider = torch.randn(3, 6), INDEX.repeat(1, 2), torch.randn(2, 6)
    for each in (call, wider):
        torch.testing.assert_close(program.call_as_model(*each), run(*each))


def test_a_source_larger_than_its_index():
    call = torch.zeros(3, 5), INDEX, torch.randn(4, 4)
    torch.testing.assert_close(
        export(lambda x, i, s: x.scatter_add(0, i, s), call).call_as_model(*call),
        call[0].scatter_add(0, INDEX, call[2]),
    )


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(("reduce", "expected"), [("amax", [4, 9, -7]), ("amin", [1, 9, -7]), ("prod", [4, 9, -7])])
def test_integers_forget_what_was_there(reduce: str, expected: list[int]):
    def run(x, index, source):
        return x.index_reduce(0, index, source, reduce, include_self=False)

    call = torch.tensor([9, 9, 9]), torch.tensor([0, 0, 2]), torch.tensor([1, 4, -7])
    assert export(run, call).call_as_model(*call).tolist() == expected


def test_a_diagonal_is_written_into_fixed_sizes_only():
    def run(x):
        return torch.diagonal_scatter(x, x[:, 0], dim1=0, dim2=1)

    x = torch.randn(3, 3)
    torch.testing.assert_close(export(run, (x,)).call_as_model(x), run(x))
    n = Dim("n", min=2)
    with pytest.raises(OnnxError, match="Writing a diagonal needs a fixed size"):
        export(run, (x,), dynamic_shapes=({0: n, 1: n},))


def test_a_copy_spreads_over_what_it_is_copied_to():
    def run(x, row):
        y = torch.zeros_like(x)
        y[:] = row
        return y

    call = torch.randn(3, 4), torch.arange(4)
    torch.testing.assert_close(export(run, call).call_as_model(*call), run(*call))


@pytest.mark.parametrize("reduce", ["add", "multiply"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scattering_with_an_operation(reduce: str, dtype: torch.dtype):
    call = torch.randint(1, 9, (3, 5)).to(dtype), INDEX, torch.randint(1, 9, (4, 4)).to(dtype)

    def run(x, index, source):
        return x.scatter(0, index, source, reduce=reduce), x.scatter(0, index, 3, reduce=reduce)

    torch.testing.assert_close(export(run, call)(*call), run(*call))


def test_sources_larger_than_the_index_are_cut():
    index = torch.tensor([[0, 1], [2, 3]])
    program = export(lambda x, source: x.scatter(1, index, source), (torch.rand(4, 5), torch.rand(4, 5)))
    assert program.verification.skipped == ()


def test_means_of_whole_numbers_are_rounded_down():
    index, source = torch.tensor([0, 0, 1]), torch.tensor([-4, -3, -1])
    program = export(lambda x: x.scatter_reduce(0, index, source, "mean"), (torch.tensor([0, 0]),))
    assert program.verification.skipped == ()
