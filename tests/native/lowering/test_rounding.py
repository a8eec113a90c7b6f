"""bfloat16 values between the operators of one loop."""

import pytest
import torch
from torch.nn import functional as F

import precast
from precast.native.loops.program import Kernel, values_of
from precast.native.loops.scalars import Cast, walk
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered


def roundings(function, *inputs):
    program = fuse(lowered(function, *inputs))
    values = [value for step in program.steps if isinstance(step, Kernel) for value in values_of(step.body)]
    return sum(isinstance(each, Cast) and each.dtype in ("bf16", "f16") for each in walk(*values))


@pytest.fixture
def x():
    return torch.randn(64, 48).bfloat16()


def test_only_the_result_is_rounded(x):
    assert roundings(lambda x: (x * 3 + 1).exp().tanh(), x) == 1


def test_half_precision_of_smaller_range_is_rounded_each_time(x):
    assert roundings(lambda x: (x * 3 + 1).exp(), x.half()) == 3


def test_a_rounding_that_the_program_asks_for_stays(x):
    function = lambda x: x.bfloat16().float() * 3  # noqa: E731
    single = torch.randn(64, 48)
    assert torch.equal(precast.compile(function)(single), function(single))


def test_comparisons_see_rounded_numbers(x):
    y = torch.randn(64, 48).bfloat16()
    assert precast.compile(lambda x, y, sum_: (x + y) == sum_)(x, y, x + y).all()


def test_results_are_nearer_to_the_truth_than_eagers(x):
    function = lambda x: F.gelu(x * 1.7 + 0.3) * x.sigmoid() + x  # noqa: E731
    exact, eager, mine = function(x.double()), function(x), precast.compile(function)(x)
    assert (mine.double() - exact).abs().mean() <= (eager.double() - exact).abs().mean()


def test_a_layer_in_half_precision_is_one_call():
    def layer(x, weight, bias, residual):
        return F.gelu(F.linear(x, weight, bias)) + residual

    inputs = [torch.randn(*shape).bfloat16() for shape in [(32, 64), (48, 64), (48,), (32, 48)]]
    assert not [step for step in fuse(lowered(layer, *inputs)).steps if isinstance(step, Kernel)]


@pytest.mark.parametrize("operator", [torch.addmm, torch.baddbmm])
def test_scaled_sums_with_products_are_rounded_once(operator):
    inputs = [torch.randn((64, 64) if operator is torch.addmm else (3, 64, 64)).bfloat16() for _ in range(3)]
    function = lambda c, a, b: operator(c, a, b, beta=-4.775, alpha=2.0315)  # noqa: E731
    exact = function(*[each.double() for each in inputs])
    eager, mine = ((each.double() - exact).norm() for each in (function(*inputs), precast.compile(function)(*inputs)))
    assert mine <= 1.02 * eager


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_rounded_where_eager_rounds_them(dtype):
    def function(x, n):
        compared = [x == 0.3, x != 0.3, x > 0.3, x >= 0.3, x < -0.3, x == n]
        return *compared, x % 0.3, torch.fmod(x, 0.3), x + 0.3, 0.3 - x, x.abs() ** 0.3, x * 0.3, x / 0.3

    x = torch.randn(64, 48).to(dtype)
    x[:2], x[2:4] = 0.3, -0.3
    results = [each(x, torch.tensor(0.3)) for each in (precast.compile(function), function)]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_threshold_is_the_number_itself(x):
    x[0] = 0.3
    assert torch.equal(precast.compile(F.threshold)(x, 0.3, 0.7), F.threshold(x, 0.3, 0.7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients_are_rounded_before_their_fraction_is_dropped(dtype):
    x, y = (torch.randn(2, 64, 48) * torch.tensor([10, 1])[:, None, None]).to(dtype)
    y[0] = 0.3
    function = lambda x, y: [torch.div(x, each, rounding_mode="trunc") for each in (y, y[0, 0], 0.3)]  # noqa: E731
    for found, expected in zip(precast.compile(function)(x, y), function(x, y), strict=True):
        assert torch.equal(found, expected)
