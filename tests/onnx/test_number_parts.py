"""Mantissas, exponents and neighbours, bit for bit: powers of two, limits, subnormal numbers, what has no parts."""

import itertools

import pytest
import torch

from precast.onnx import export

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    least = limits.smallest_normal * limits.eps
    special = [
        0.0,
        1.0,
        0.5,
        3.0,
        1 - limits.eps / 2,
        1 + limits.eps,
        limits.max,
        limits.smallest_normal,
        least,
        7 * least,
    ]
    special += [limits.smallest_normal - least, float("inf"), float("nan"), 2.0**12 - 1]
    random = torch.randn(50, generator=torch.Generator().manual_seed(0)).mul(4).exp().tolist()
    return torch.tensor([sign * each for sign, each in itertools.product((1, -1), [*special, *random])], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts(dtype: torch.dtype):
    x = numbers(dtype)
    mantissa, exponent = export(torch.frexp, (x,), verify=False)(x)
    expected = torch.frexp(x)
    assert torch.equal(mantissa.nan_to_num(7), expected.mantissa.nan_to_num(7))
    is_plain = x.isfinite()
    assert torch.equal(exponent[is_plain], expected.exponent[is_plain])


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("goal", [float("inf"), -float("inf"), 0.0, 1.0, float("nan")])
def test_neighbours(dtype: torch.dtype, goal: float):
    x = numbers(dtype)
    call = x, torch.full_like(x, goal)
    (found,) = export(torch.nextafter, call, verify=False)(*call)
    torch.testing.assert_close(found, torch.nextafter(*call), rtol=0, atol=0, equal_nan=True)
