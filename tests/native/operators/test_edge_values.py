"""NaN, infinities, zeros of either sign, nothing at all, and whole numbers at their limits behave as in eager."""

from itertools import product

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import precast

FLOATS = torch.tensor(
    [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104.0]
)  # fmt: skip
UNARY = ["abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal", "relu", "round",
         "rsqrt", "sigmoid", "sign", "sin", "sqrt", "tanh", "trunc", "isnan", "isinf", "frac"]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "pow", "atan2", "eq", "lt", "ge"]
REDUCTIONS = ["sum", "mean", "amax", "amin", "prod", "logsumexp", "softmax"]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SIGNED = INTEGERS[:4]


def native(function, **choices):
    return precast.compile(function, backend="native", **choices)


def assert_like_eager(function, *inputs):
    ours, eager = native(function)(*inputs), function(*inputs)
    torch.testing.assert_close(ours, eager, equal_nan=True)
    for mine, theirs in zip(ours, eager, strict=True):
        if theirs.is_floating_point():
            zeros = theirs == 0
            assert torch.equal(mine[zeros].signbit(), theirs[zeros].signbit()), "a zero has another sign"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_unary_operators_at_the_limits(dtype):
    assert_like_eager(lambda x: [getattr(torch, name)(x) for name in UNARY], FLOATS.to(dtype))


def test_binary_operators_at_the_limits():
    def function(x, y):
        return [getattr(torch, name)(x, y) for name in BINARY]

    assert_like_eager(function, FLOATS[:, None], FLOATS[None])


def reduce_all(x, dim):
    return [getattr(torch, name)(x, dim) for name in REDUCTIONS]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_odd_value_among_many(value):
    x = torch.randn(3, 40)
    x[1, 7] = value
    assert_like_eager(lambda x: [*reduce_all(x, 1), *reduce_all(x.t().contiguous(), 0)], x)


def test_reducing_nothing():
    def function(x):
        return x.sum(), x.sum(0), x.prod(1), x.mean(0), torch.softmax(x, 1), x.any(), x.all(1), torch.logsumexp(x, 0)

    for shape in ((0, 3), (3, 0), (0, 0)):
        assert_like_eager(function, torch.empty(shape))


def test_empty_tensors_through_everything():
    def function(x, y):
        return x.exp() + 1, x @ y, torch.cat([x, x]), x.t(), x[:, :1], torch.relu(x).reshape(-1)

    assert_like_eager(function, torch.empty(0, 3), torch.randn(3, 2))
    assert_like_eager(function, torch.empty(2, 0), torch.empty(0, 4))


def test_zero_dim_tensors():
    def function(x, y):
        return x + y, x.exp().sum(), torch.stack([x, y]), x.expand(3), torch.softmax(x, 0), x.max()

    assert_like_eager(function, torch.tensor(2.0), torch.tensor(3.0))


def limits(dtype):
    """Pairs of whole numbers: the smallest and the largest ones of a type, and those around zero."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = torch.tensor([least, least + 1, -(least < 0), 0, 1, 2, 7, most - 1, most]).to(dtype)
    return torch.meshgrid(values, values, indexing="ij")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers_wrap_around(dtype):
    def function(x, y):
        sums = (
            x + y,
            x - y,
            x * y,
            x + 1,
            2 - x,
            torch.add(x, y, alpha=3),
            x.cumsum(0),
            x.cumprod(1),
            x.sum(dtype=dtype),
        )
        return -x, x.abs(), x.square(), x**3, *sums, x.sum(), x.prod(1), x @ y, torch.addmm(x, x, y, beta=2, alpha=3)

    assert_like_eager(function, *limits(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_and_order_of_whole_numbers(dtype):
    def function(x, y):
        chosen = x.clamp(1, 5), torch.maximum(x, y), x.amin(0), x.argmax(1), x.sign(), torch.where(x > y, x, y)
        shifted = x << (y & 7), x >> (y & 7), x << y, x >> y
        return x & y, x | y, x ^ y, ~x, *shifted, x < y, x >= y, x == y, x > 2.5, *chosen, x / y

    assert_like_eager(function, *limits(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_dividing_whole_numbers_at_their_limits(dtype):
    def function(x, y):
        return x // y, x % y, torch.fmod(x, y), x // 3, x % 7

    x, y = limits(dtype)
    assert_like_eager(function, x, y.masked_fill(y == 0, 3))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_the_least_whole_number_divided_by_minus_one_wraps(dtype):
    """Eager's own truncating division ends the process there."""
    least = torch.tensor([torch.iinfo(dtype).min], dtype=dtype)
    truncated = native(lambda x, y: torch.div(x, y, rounding_mode="trunc"))(least, -torch.ones_like(least))
    assert torch.equal(truncated, least)


@pytest.mark.parametrize("dtype", SIGNED)
def test_dividing_negative_whole_numbers(dtype):
    x, y = torch.meshgrid(*[torch.tensor([-7, -6, -1, 1, 5, 7], dtype=dtype)] * 2, indexing="ij")

    def function(x, y):
        rounded = [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")]
        return x // y, x % y, torch.fmod(x, y), x / y, *rounded, x // 3, x // -3, x % -4, x >> 1, torch.pow(x, y)

    assert_like_eager(function, x, y)


def test_truths():
    x, y = torch.meshgrid(torch.tensor([True, False]), torch.tensor([True, False, True]), indexing="ij")

    def function(x, y):
        sums = x.sum(), x.sum(0), x.cumsum(0), x.prod(1), x.any(1), x.all(), x.count_nonzero()
        mixed = (
            x * 2,
            x * 0.5,
            x.int() << 1,
            x.exp(),
            torch.where(x, y, ~x),
            torch.cat([x, y]),
            x.amax(0),
            x / (y | True),
        )
        return x & y, x | y, x ^ y, ~x, x + y, x * y, x == y, x < y, torch.maximum(x, y), *sums, *mixed

    assert_like_eager(function, x, y)


@pytest.mark.parametrize("operator", [torch.floor_divide, torch.remainder, torch.fmod])
@pytest.mark.parametrize("divisor", [0, torch.tensor([1, 0])], ids=["number", "tensor"])
def test_dividing_whole_numbers_by_zero_raises_as_eager_does(operator, divisor):
    x = torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        operator(x, divisor)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        native(lambda x: operator(x, divisor) + 1)(x)


def test_dynamic_sizes_may_become_nothing():
    function = lambda x: (x.exp().sum(0), x.reshape(-1) * 2)  # noqa: E731
    compiled = native(function, dynamic=True)
    for rows in (4, 7, 0, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), function(x))


def test_attention_of_a_row_that_sees_nothing():
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False

    def gradients(run):
        torch.manual_seed(0)
        inputs = [torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]
        return torch.autograd.grad(run(*inputs).sum(), inputs)

    def function(query, key, value):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    torch.testing.assert_close(gradients(native(function)), gradients(function))


SLOPED = {
    "logit": torch.logit,
    "logit within bounds": lambda x: torch.logit(x, 0.1),
    **{f"cdist {p}": lambda x, p=p: torch.cdist(x.view(4, 3), x.view(4, 3)[:2], p) for p in (0.5, 1, 3, torch.inf)},
    **{f"pdist {p}": lambda x, p=p: functional.pdist(x.view(4, 3), p) for p in (0.5, 1, 3, torch.inf)},
}  # fmt: skip


@pytest.mark.parametrize("slope", [1.0, torch.inf, torch.nan])
@pytest.mark.parametrize("name", SLOPED)
def test_gradients_at_the_limits(name, slope):
    numbers = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, 0.5, 0.2, 0.9, 0.5, 0.2, 0.0])

    def gradient(run):
        x = numbers.clone().requires_grad_()
        result = run(x)
        return torch.autograd.grad(result, x, torch.full_like(result, slope))[0]

    ours = gradient(precast.compile(SLOPED[name], backend="interpret"))
    torch.testing.assert_close(ours, gradient(SLOPED[name]), equal_nan=True)


SUBNORMAL = {torch.float32: 1e-40, torch.float64: 1e-310, torch.bfloat16: 1e-40, torch.float16: 6e-8}


@pytest.mark.parametrize("dtype", SUBNORMAL)
@pytest.mark.parametrize("operator", [torch.fmod, torch.remainder])
def test_rests_of_divisions_by_subnormal_numbers_are_those_of_eager_one_by_one(operator, dtype):
    """Eager's vectors hold NaN where the quotient is too large; its single numbers are right."""
    least = SUBNORMAL[dtype]
    values = torch.tensor([1.0, -1.0, 2.5, 6e4, 0.0, torch.inf, torch.nan, least, -least, 3 * least], dtype=dtype)
    pairs = torch.cartesian_prod(values, values)
    eager = torch.stack([operator(*pair) for pair in pairs])
    ours = native(operator)(pairs[:, 0].contiguous(), pairs[:, 1].contiguous())
    torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


def attend(query, key, value, mask, is_causal):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)


def attended(run, inputs, mask, is_causal):
    leaves = [each.clone().requires_grad_() for each in inputs]
    result = run(*leaves, mask, is_causal)
    weights = torch.linspace(0.5, 1.5, result.shape[-1], dtype=result.dtype)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)]


def poisoned(dtype, queries, keys):
    """Attention with NaN, or an infinite number, in each operand in turn, and of rows that see nothing."""
    for kind in ("whole", "causal", "chosen", "weighed"):
        for operand, number in [(0, 1.0), *product(range(3), (torch.nan, torch.inf, -torch.inf))]:
            generator = torch.Generator().manual_seed(0)
            inputs = [torch.randn(1, 2, rows, 4, generator=generator).to(dtype) for rows in (queries, keys, keys)]
            inputs[operand][0, 0, 3, 1] = number
            mask = torch.rand(queries, keys, generator=generator) > 0.3
            mask[2], mask[:, 3] = False, operand == 0
            weights = torch.zeros(queries, keys, dtype=dtype).masked_fill(~mask, -torch.inf)
            yield inputs, {"chosen": mask, "weighed": weights}.get(kind), kind == "causal"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(5, 7), (70, 600)], ids=str)
def test_attention_over_what_is_no_number_is_that_of_a_kernel_of_eager(dtype, sizes):
    """Eager's two kernels differ in how far NaN spreads: each element is that of one of them, in gradients too."""
    compiled = native(attend)
    close = {"rtol": 4e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for inputs, mask, is_causal in poisoned(dtype, *sizes):
        ours = attended(compiled, inputs, mask, is_causal)
        by_blocks = attended(attend, inputs, mask, is_causal)
        with sdpa_kernel(SDPBackend.MATH):
            whole = attended(attend, inputs, mask, is_causal)
        for mine, *theirs in zip(ours, by_blocks, whole, strict=True):
            one, other = (torch.isclose(mine, each, equal_nan=True, **close) for each in theirs)
            assert bool((one | other).all())


@pytest.mark.parametrize("scale", [-0.5, -0.0, 0.0, 3.0, 1e300])
def test_attention_of_any_scale(scale):
    inputs = [torch.randn(1, 2, rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in (5, 7, 7)]

    def function(query, key, value):
        return (functional.scaled_dot_product_attention(query, key, value, scale=scale),)

    assert_like_eager(function, *inputs)
