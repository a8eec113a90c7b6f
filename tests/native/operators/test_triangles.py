"""Triangles, and their transposes, of matrices that are smaller than a vector or a little larger."""

import pytest
import torch

import precast

SIZES = (2, 3, 4, 5, 8, 9, 16)


def symmetric(matrix):
    lower = matrix.tril()
    return lower + lower.tril(-1).mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_triangle_and_its_transpose(dtype):
    """The compiler took one masked element for another in loops that it had unrolled."""
    matrices = [torch.randn(size, size, dtype=dtype) for size in SIZES]
    calls = precast.compile(lambda matrices: [symmetric(each) for each in matrices], fullgraph=True)
    assert all(map(torch.equal, calls(matrices), map(symmetric, matrices)))
