"""Sums lose no more digits than eager's, and NaN wins among the largest."""

import math

import pytest
import torch

from tests.native.lowering.pipeline import lowered, make_entry, open_entries

SHAPES = [((5, 30000), 1), ((30000, 300), 0), ((3, 700, 7), (0, 1)), ((100000,), 0)]


def compiled(function, inputs, cache):
    return open_entries([make_entry(lowered(function, *inputs))], cache)["forward"]


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sums_are_as_near_to_the_truth_as_eagers(shape, dim, tmp_path):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    exact = x.double().sum(dim)
    ours, eager = compiled(lambda x: x.sum(dim), [x], tmp_path)(x)[0], x.sum(dim)
    assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-7 * exact.abs().max()


@pytest.mark.parametrize("place", [0, 17, 2999])
def test_nan_is_the_largest_wherever_it_stands(place, tmp_path):
    x = torch.rand(2, 3000)
    x[1, place] = math.nan
    result = compiled(lambda x: (x.amax(1), x.amin(1)), [x], tmp_path)(x)
    torch.testing.assert_close(list(result), [x.amax(1), x.amin(1)], equal_nan=True, rtol=0, atol=0)


def test_bytes_stand_for_bools(tmp_path):
    x, mask = torch.rand(4, 100), torch.rand(4, 100) > 0.5
    ours = compiled(lambda x, m: (torch.where(m, x, 0.0), m & (x > 0.5)), [x, mask], tmp_path)(x, mask)
    torch.testing.assert_close(list(ours), [torch.where(mask, x, 0.0), mask & (x > 0.5)])
