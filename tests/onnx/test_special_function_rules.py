"""Special functions over wide ranges, against torch in double precision."""

import math

import pytest
import torch

from precast.onnx import export

WIDE = torch.cat([torch.linspace(-20.3, 20.3, 401), torch.linspace(20, 80, 50)])
POSITIVE = torch.cat([torch.logspace(-4, 1, 200), torch.linspace(10, 200, 50)])
CASES = {
    "lgamma": (torch.lgamma, WIDE),
    "digamma": (torch.digamma, WIDE),
    "trigamma": (lambda x: torch.polygamma(1, x), POSITIVE),
    "zeta": (lambda x: torch.special.zeta(x + 1.1, x), POSITIVE),
    "mvlgamma": (lambda x: torch.mvlgamma(x + 2, 3), POSITIVE),
    "erfinv": (torch.erfinv, torch.linspace(-0.99999, 0.99999, 501)),
    "ndtri": (torch.special.ndtri, torch.logspace(-30, -0.001, 300)),
    "log_ndtr": (torch.special.log_ndtr, WIDE),
    "i0": (torch.special.i0, WIDE),
    "i0e": (torch.special.i0e, WIDE),
    "i1": (torch.special.i1, WIDE),
    "i1e": (torch.special.i1e, WIDE),
    "spherical_bessel_j0": (torch.special.spherical_bessel_j0, torch.cat([WIDE, torch.zeros(1)])),
}


@pytest.mark.parametrize("name", CASES)
def test_as_precise_as_a_float(name: str):
    function, x = CASES[name]
    result = export(function, (x,), verify=False).call_as_model(x)
    expected = function(x.double())
    torch.testing.assert_close(result.double(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma, torch.erfinv, torch.special.ndtri])
def test_ends_and_poles(function):
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, -2.0, math.nan])
    torch.testing.assert_close(export(function, (x,), verify=False).call_as_model(x), function(x), equal_nan=True)
