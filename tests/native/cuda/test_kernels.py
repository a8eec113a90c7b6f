"""Kernels for GPUs, run by Triton's interpreter, give what eager gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import precast
from tests.native.cuda.interpreted import InterpretedGpu, compiled
from tests.native.lowering.cases import as_tuple, floats, integers
from tests.native.lowering.numbers import assert_right, doubled

FUNCTIONS = {
    "chain": (lambda x, y: (x.exp() * y + 1).tanh().bfloat16(), [floats(5, 33), floats(33, seed=1)]),
    "transposed": (lambda x: x.T * 2 + x.T.sigmoid(), [floats(40, 17)]),
    "half": (lambda x: F.gelu(x) * x, [floats(7, 50).half()]),
    "whole_numbers": (lambda x, y: (x // 3 + x % y) * (x > 2), [integers(90), integers(90, low=1, seed=1)]),
    "small_numbers": (lambda x: (x * 100 + 7).abs() ^ 3, [integers(60, dtype=torch.int8)]),
    "bools": (lambda x: ((x > 0) & (x < 1)).logical_xor(x > 0.5), [floats(70)]),
    "doubles": (lambda x: x.sum(1).exp() / 3, [floats(4, 30, dtype=torch.float64)]),
    "row_sum": (lambda x: x.sum(-1), [floats(9, 70)]),
    "column_sum": (lambda x: x.sum(0), [floats(1200, 6)]),
    "whole_sum": (lambda x: x.mean() * x, [floats(130, 70)]),
    "softmax": (lambda x: x.softmax(-1), [floats(9, 70)]),
    "long_softmax": (lambda x: x.softmax(-1), [floats(2, 40000)]),
    "largest": (lambda x: x.amax(0) - x.amin(1, keepdim=True), [floats(30, 30)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (48,), w, w), [floats(6, 48), floats(48, seed=1)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [floats(2, 4, 90)]),
    "argmax": (lambda x: x.argmax(1), [floats(8, 30)]),
    "gathered": (lambda x, i: x[i] + x.gather(0, i[:, None]), [floats(20, 4), integers(9, low=0, high=20)]),
    "scattered": (
        lambda x, i: x.new_zeros(10, 4).index_add(0, i, x).scatter(0, i[:, None], 3.0),
        [floats(20, 4), integers(20, low=0, high=10)],
    ),
    "put_together": (lambda x, y: torch.cat([x, y * 2, x], 1).flip(0), [floats(6, 5), floats(6, 9, seed=1)]),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2) + F.avg_pool2d(x, 3, 2), [floats(2, 3, 9, 9)]),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), [floats(12, 50), integers(12, low=0, high=50)]),
    "product": (lambda x, y: F.relu(x @ y + 1).sum(0), [floats(12, 20), floats(20, 8, seed=1)]),
    "empty": (lambda x: (x * 2, x.sum(0), x.sum(1)), [floats(0, 8)]),
}  # fmt: skip


@pytest.fixture
def target(tmp_path) -> InterpretedGpu:
    return InterpretedGpu(tmp_path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_result_is_that_of_eager(name: str, target):
    function, inputs = FUNCTIONS[name]
    with torch.no_grad():
        results, eager = as_tuple(compiled(target, function)(*inputs)), as_tuple(function(*inputs))
        exact = as_tuple(function(*doubled(inputs)))
    for mine, theirs, reference in zip(results, eager, exact, strict=True):
        assert_right(mine, theirs, reference, sums=True)
    assert target.sources
    assert not any(entry.fallbacks for entry in target.built)


def test_nan_is_the_largest(target):
    x = floats(3, 20)
    x[1, 3] = float("nan")
    torch.testing.assert_close(compiled(target, lambda x: x.amax(1))(x), x.amax(1), equal_nan=True)


def test_kernels_of_other_types_are_others(target):
    inputs = [floats(84, dtype=torch.float64), floats(84), integers(84), integers(84, dtype=torch.int32)]
    results = compiled(target, lambda *inputs: [x - x * x for x in inputs])(*inputs)
    for mine, x in zip(results, inputs, strict=True):
        torch.testing.assert_close(mine, x - x * x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_whole_numbers_wrap_as_in_eager(target, dtype):
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x >> y, x << y, x * -3, x - 200, -x, x.abs()

    x = torch.tensor([200, 7, -5, 100] * 3).to(dtype)
    y = torch.tensor([7, 8, 9, 31, 32, 33, 63, 64, -1, 0, 1, -3]).to(dtype)
    for mine, expected in zip(compiled(target, function)(x, y), function(x, y), strict=True):
        assert torch.equal(mine, expected)


def test_the_next_number_is_that_of_the_type(target):
    x, y = torch.tensor([1.5, -3.0, 0.1, float("inf")]).bfloat16(), torch.zeros(4).bfloat16()
    assert torch.equal(compiled(target, torch.nextafter)(x, y), torch.nextafter(x, y))


def test_the_sign_of_zero_is_kept(target):
    x = torch.tensor([0.0, -0.0, 1.0])
    mine = compiled(target, lambda x: (-x, torch.where(x > 0, x, -0.0), x + torch.full((3,), -0.0)))(x)
    assert [each.signbit().tolist() for each in mine] == [
        [True, False, True],
        [True, True, False],
        [False, True, False],
    ]


@pytest.mark.parametrize("strides", [(2**30, 1), (1, 2**30)])
def test_places_far_apart_are_found(target, strides):
    # Of this memory, only the pages in use exist.
    x = torch.empty(5 * 2**30, dtype=torch.uint8).as_strided((5, 3) if strides[0] > 1 else (3, 5), strides)
    x.copy_(torch.arange(15).view(x.shape))
    functions = (
        lambda x: x.amax(0),
        lambda x: x.float().sum(1),
        lambda x: x.flip(0) + 1,
        lambda x: x.float().softmax(0),
    )
    for function in functions:
        torch.testing.assert_close(compiled(target, function)(x), function(x))


def test_numbers_beyond_32_bits_are_computed_from_places(target):
    function = compiled(target, lambda x: x + torch.arange(0, 10**10, 10**6))
    torch.testing.assert_close(function(torch.zeros(10**4, dtype=torch.int64)), torch.arange(0, 10**10, 10**6))


@pytest.mark.parametrize("dynamic", [False, True])
def test_libraries_read_nothing_backwards(target, dynamic):
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.flip(-1) @ w, w.flip(0).T @ x.T, F.conv1d(x.flip(-1)[None], w[None, :6, :8].mT)

    x, w = floats(8, 12), floats(12, 6, seed=1)
    w = torch.cat([w, w], 1)
    for mine, expected in zip(compiled(target, function, dynamic=dynamic)(x, w), function(x, w), strict=True):
        torch.testing.assert_close(mine, expected)


def test_one_kernel_serves_all_sizes(target):
    function = compiled(target, lambda x: x.softmax(-1) + x.sum(0), dynamic=True)
    for rows, columns in ((3, 50), (70, 4), (5, 3000)):
        x = floats(rows, columns)
        torch.testing.assert_close(function(x), x.softmax(-1) + x.sum(0), rtol=1e-4, atol=1e-4)
    assert len(target.built) == 1


def test_equal_layers_share_their_kernels(target):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(3)))
    with torch.no_grad():
        compiled(target, model)(floats(4, 8))
    assert len(target.sources) <= 2


def test_random_numbers_are_those_of_cpus(target):
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.dropout(x, 0.3), torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)

    on_gpu, on_cpu, x = compiled(target, function), precast.compile(function), floats(5, 40)
    torch.manual_seed(3)
    mine = on_gpu(x)
    torch.manual_seed(3)
    for number, expected in zip(mine, on_cpu(x), strict=True):
        torch.testing.assert_close(number, expected, rtol=1e-6, atol=1e-6)


def test_training_steps_are_those_of_eager(target):
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 4)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    native = compiled(target, model)
    for step in range(2):
        x, labels = floats(8, 6, seed=step), integers(8, low=0, high=4, seed=step)
        for each, called in ((model, native), (other, other)):
            F.cross_entropy(called(x), labels).backward()
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    for mine, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_an_input_is_updated_where_it_is(target):
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(y)
        return x.sum()

    x, expected, y = floats(40), floats(40), floats(40, seed=1)
    address = x.data_ptr()
    torch.testing.assert_close(compiled(target, function)(x, y), function(expected, y))
    torch.testing.assert_close(x, expected)
    assert x.data_ptr() == address


def test_memory_that_is_not_aligned_is_copied(target):
    x = floats(41)[1:]
    torch.testing.assert_close(compiled(target, torch.sin)(x), x.sin())


def test_an_expanded_input_elsewhere_is_copied(target):
    function = compiled(target, lambda x: x * 2)
    for x in (floats(1).expand(20), floats(5)[1:2].expand(20)):
        torch.testing.assert_close(function(x), x * 2)


def test_a_place_outside_stops_the_device(target):
    with pytest.raises(Exception, match="out of"):
        compiled(target, lambda x, i: x[i])(floats(4), torch.tensor([1, 9]))
