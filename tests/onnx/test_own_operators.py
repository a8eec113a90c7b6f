"""Operators that capture puts in the place of torch's: products by groups, sequences without alignment, checks."""

import pytest
import torch
from torch.nn import functional

from precast.onnx import export
from precast.ops.own_operators import grouped_rows, grouped_sums

ROWS, MATRICES = torch.randn(7, 4), torch.randn(3, 4, 5)


@pytest.mark.parametrize("ends", [[2, 5, 7], [0, 3, 3], [7, 7, 7]])
def test_rows_by_the_matrices_of_their_groups(ends: list[int]):
    example = (ROWS, MATRICES, torch.tensor([1, 2, 3]))
    program = export(lambda x, y, e: grouped_rows(x, y, e), example, dynamic_shapes=({0: "rows"}, None, None))
    call = (torch.cat([ROWS, ROWS]), MATRICES, torch.tensor(ends))
    torch.testing.assert_close(program.call_as_model(*call), grouped_rows(*call))


def test_sums_of_groups():
    right, ends = torch.randn(7, 5), torch.tensor([2, 2, 6])
    program = export(lambda x, y, e: grouped_sums(x, y, e), (ROWS, right, ends))
    torch.testing.assert_close(program.call_as_model(ROWS, right, ends), grouped_sums(ROWS, right, ends))


@pytest.mark.thinned
@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize("is_flat", [True, False])
def test_sequences_whose_alignment_is_not_known(is_flat: bool, zero_infinity: bool):
    targets = torch.tensor([[1, 2, 2, 1], [3, 3, 0, 0], [1, 0, 0, 0], [2, 2, 2, 2]])
    lengths = torch.tensor([4, 2, 0, 4])
    # The last has too little time for its label, which comes up four times.
    times = torch.tensor([9, 8, 3, 5])
    given = torch.cat([row[:length] for row, length in zip(targets, lengths, strict=True)]) if is_flat else targets

    def run(x, targets, times, lengths):
        return functional.ctc_loss(
            x.log_softmax(-1), targets, times, lengths, reduction="none", zero_infinity=zero_infinity
        )

    x = torch.randn(9, 4, 5)
    program = export(run, (x, given, times, lengths), dynamic_shapes=({0: "time"}, None, None, None))
    for x in (torch.randn(9, 4, 5), torch.randn(12, 4, 5)):
        torch.testing.assert_close(program.call_as_model(x, given, times, lengths), run(x, given, times, lengths))


def test_what_eager_checks_is_left_out():
    def run(x, weights):
        return torch.cov(x, fweights=weights)

    program = export(run, (torch.randn(3, 4), torch.tensor([1, 2, 1, 1])))
    x, weights = torch.randn(3, 4), torch.tensor([2, 1, 1, 3])
    torch.testing.assert_close(program.call_as_model(x, weights), run(x, weights))
