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


BESSEL = ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0", "scaled_modified_bessel_k1")


@pytest.mark.parametrize("name", BESSEL)
def test_bessel_functions_near_and_far(name: str):
    function = getattr(torch.special, name)
    x = torch.cat([torch.tensor([0.0, 1e-6, 13.99, 14.0, 49.9, 50.1, 1000.0]), torch.linspace(0.01, 40, 50)])
    (actual,) = export(lambda x: function(x), (x,), verify=False)(x)
    torch.testing.assert_close(actual.double(), function(x.double()), rtol=1e-5, atol=1e-6)


def test_incomplete_gamma_functions():
    torch.manual_seed(0)
    shape = torch.cat([torch.rand(40) * 10, torch.rand(20) * 200, torch.tensor([0.0, 1.0, math.inf, -1.0, 5000.0])])
    x = torch.cat([torch.rand(40) * 15, torch.rand(20) * 250, torch.tensor([1.0, 0.0, 3.0, 1.0, 5010.0])])
    found = export(lambda a, x: (torch.igamma(a, x), torch.igammac(a, x)), (shape, x), verify=False)(shape, x)
    for actual, function in zip(found, (torch.igamma, torch.igammac), strict=True):
        expected = function(shape.double(), x.double())
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
