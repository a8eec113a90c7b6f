"""Least squares in graphs: shapes without data, and what a compiled function gives."""

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import precast
from precast.errors import DataDependentError
from precast.trace.eager.fake_mode import make_fake_mode

SHAPES = {
    "tall": ((5, 3), (5, 2)),
    "wide": ((3, 5), (3, 1)),
    "square": ((4, 4), (4, 2)),
    "vector": ((2, 5, 3), (2, 5)),
    "batch": ((2, 5, 3), (2, 5, 4)),
    "one matrix for many": ((1, 5, 3), (4, 5, 2)),
    "one right side for many": ((4, 3, 5), (1, 3, 2)),
}


def lying(results):
    return [(each.shape, each.stride(), each.dtype) for each in results]


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelss", "gelsd"])
@pytest.mark.parametrize("name", SHAPES)
def test_results_lie_as_eager_lays_them(name, driver):
    matrix, right = (torch.randn(shape) for shape in SHAPES[name])
    mode = make_fake_mode(ShapeEnv())
    fakes = mode.from_tensor(matrix), mode.from_tensor(right)
    if driver in ("gelss", "gelsd") and matrix.shape[-2] > matrix.shape[-1]:
        with mode, pytest.raises(DataDependentError, match="full rank"):
            torch.linalg.lstsq(*fakes, driver=driver)
        return
    with mode:
        ours = torch.linalg.lstsq(*fakes, driver=driver)
    assert lying(ours) == lying(torch.linalg.lstsq(matrix, right, driver=driver))


def test_a_compiled_fit_and_its_gradient_are_eagers():
    matrix, right = torch.randn(6, 3, requires_grad=True), torch.randn(6, 2)

    def fit(matrix, right):
        return torch.linalg.lstsq(matrix, right).solution * 2

    eager, ours = fit(matrix, right), precast.compile(fit)(matrix, right)
    torch.testing.assert_close(ours, eager)
    gradients = [torch.autograd.grad(each.sum(), matrix)[0] for each in (ours, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
