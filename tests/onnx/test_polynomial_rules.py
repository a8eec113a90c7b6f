"""Orthogonal polynomials, whose degree is data."""

import pytest
import torch

from precast.onnx import export

NAMES = [
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip
X = torch.tensor([-1.5, -1.0, -0.3, 0.0, 0.4, 1.0, 2.0])


@pytest.mark.parametrize("name", NAMES)
def test_every_degree(name: str):
    function = getattr(torch.special, name)
    degrees = torch.arange(-1.0, 9.0)[:, None]
    program = export(lambda x, n: (function(x, n), function(x, 3), function(0.5, n)), (X, degrees))
    torch.testing.assert_close(program(X, degrees)[0], function(X, degrees), rtol=1e-4, atol=1e-4)
