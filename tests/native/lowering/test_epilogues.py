"""What follows a product or a convolution goes into its call, as far as it can; the numbers stay."""

import pytest
import torch
import torch.nn.functional as F

from precast.native.loops.interpreter import interpret
from precast.native.loops.program import Kernel, LibraryCall
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import as_tuple, check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered


def block(x, w, mean, variance, gamma, beta, y):
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, variance, gamma, beta) + y)


def shortcut(x, w, v):
    return F.relu(F.conv2d(x, w, padding=1) * 2 + F.conv2d(x, v))


CHANNEL = [floats(6, seed=seed) for seed in range(3)]
IMAGE, FILTERS, RESIDUAL = floats(2, 4, 9, 8), floats(6, 4, 3, 3), floats(2, 6, 9, 8)
LAST, LINEAR = torch.channels_last, [floats(5, 7), floats(6, 7), floats(6)]
CASES = {
    "bias": (lambda x, w, b: F.linear(x, w, b), [floats(5, 7), floats(6, 7), floats(6)]),
    "bias_of_batches": (lambda x, w, b: F.linear(x, w, b), [floats(2, 5, 7), floats(6, 7), floats(6)]),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [floats(5, 7), floats(6, 7), floats(6)]),
    "gelu_by_tanh": (lambda x, w: F.gelu(x @ w, approximate="tanh"), [floats(5, 7), floats(7, 6)]),
    "silu": (lambda x, w: F.silu(x @ w), [floats(5, 7), floats(7, 6)]),
    "tanh": (lambda x, w: torch.tanh(x @ w), [floats(5, 7), floats(7, 6)]),
    "sigmoid": (lambda x, w: torch.sigmoid(x @ w), [floats(5, 7), floats(7, 6)]),
    "hardswish": (lambda x, w: F.hardswish(x @ w), [floats(5, 7), floats(7, 6)]),
    "hardswish_of_sums": (lambda x, w, b: F.hardswish(F.linear(x, w, b)), LINEAR),
    "hardswish_of_images": (lambda x, w, b: F.hardswish(F.conv2d(x, w, b)), [IMAGE[:1], FILTERS, CHANNEL[0]]),
    "silu_and_itself": (lambda x, w: (lambda y: F.silu(y) + y)(x @ w), [floats(5, 7), floats(7, 6)]),
    "gelu_by_itself": (lambda x, w: (lambda y: F.gelu(y) * y.sin())(x @ w), [floats(5, 7), floats(7, 6)]),
    "hardswish_and_itself": (lambda x, w: (lambda y: F.hardswish(y) + y)(x @ w), [floats(5, 7), floats(7, 6)]),
    "squared": (lambda x, w: (lambda y: y * y)(x @ w), [floats(5, 7), floats(7, 6)]),
    "residual": (lambda x, w, y: x @ w + y, [floats(5, 7), floats(7, 6), floats(5, 6)]),
    "scale": (lambda x, w, s: (x @ w - 1) / s, [floats(5, 7), floats(7, 6), floats(6).abs() + 1]),
    "one_row": (lambda x, w, b: F.relu(F.linear(x, w, b)), [floats(1, 7), floats(6, 7), floats(6)]),
    "many_long_rows": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)), [floats(31, 200), floats(67, 200), floats(67)]),
    "colliding_columns": (lambda x, w, b: F.linear(x, w, b), [floats(9, 512), floats(14, 512), floats(14)]),
    "one_long_row": (lambda x, w, b: F.linear(x, w, b), [floats(1, 200), floats(67, 200), floats(67)]),
    "few_long_rows": (lambda x, w: x @ w.t(), [floats(3, 200), floats(66, 200)]),
    "batch_norm": (
        lambda x, w, m, v, g, b: F.relu(F.batch_norm(F.conv2d(x, w), m, v, g, b)),
        [IMAGE, FILTERS, CHANNEL[0], CHANNEL[1].abs() + 0.5, CHANNEL[2], CHANNEL[0]]),
    "block": (
        block, [IMAGE.to(memory_format=LAST), FILTERS, CHANNEL[0], CHANNEL[1].abs() + 0.5, CHANNEL[2], CHANNEL[0],
                RESIDUAL.to(memory_format=LAST)]),
    "shortcut": (shortcut, [IMAGE, FILTERS, floats(6, 4, 1, 1)]),
    "three_dimensions": (
        lambda x, w, b: F.conv3d(x, w, b).relu(), [floats(1, 2, 4, 5, 6), floats(3, 2, 2, 2, 2), floats(3)]),
    "bf16": (lambda x, w, b: F.linear(x, w, b).relu(), [each.bfloat16() for each in LINEAR]),
    "bf16_gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [each.bfloat16() for each in LINEAR]),
    "bf16_residual": (
        lambda x, w, b, y: F.linear(x, w, b) + y, [each.bfloat16() for each in (*LINEAR, floats(5, 6, seed=3))]),
    "bf16_then_sin": (lambda x, w, b: F.linear(x, w, b).sin(), [each.bfloat16() for each in LINEAR]),
    "f16_silu": (lambda x, w: F.silu(x @ w), [floats(5, 7).half(), floats(7, 6).half()]),
    "to_half": (lambda x, w: ((x @ w) * 2).bfloat16(), [floats(5, 7), floats(7, 6)]),
    "to_whole_numbers": (lambda x, w: F.relu(x @ w).long(), [floats(5, 7), floats(7, 6)]),
    "double": (lambda x, w, b: F.linear(x, w, b).relu(), [each.double() for each in LINEAR]),
    "cropped": (lambda x, w: (x @ w)[:, :4].relu() * 3, [floats(5, 7), floats(7, 6)]),
    "cropped_rows": (lambda x, w, b: F.silu((x @ w)[:3] + b), [floats(5, 7), floats(7, 6), floats(6)]),
    "cropped_residual": (lambda x, w, y: (x @ w)[:3, :2] + y, [floats(5, 7), floats(7, 6), floats(3, 2)]),
    "one_column": (lambda x, w: F.silu((x @ w)[:, 0]), [floats(5, 7), floats(7, 6)]),
    "first_half": (lambda x, w: F.linear(x, w).chunk(2, -1)[0] * 3, [floats(2, 24, 2), floats(8, 2)]),
    "every_other": (lambda x, w: (x @ w)[::2].sigmoid(), [floats(6, 7), floats(7, 6)]),
    "causal_convolution": (
        lambda x, w: F.silu(F.conv1d(x, w, padding=3, groups=6)[:, :, :16]), [floats(2, 6, 16), floats(6, 1, 4)]),
    "cropped_image": (lambda x, w, b: F.relu(F.conv2d(x, w, b)[:, :, :4, :5]), [IMAGE, FILTERS, CHANNEL[0]]),
    "nothing": (lambda x, w, b: F.linear(x, w, b).relu(), [floats(0, 7), floats(6, 7), floats(6)]),
    "no_depth": (lambda x, w, b: F.linear(x, w, b).relu(), [floats(5, 0), floats(6, 0), floats(6)]),
}  # fmt: skip
WHOLE = (
    "tanh",
    "sigmoid",
    "hardswish",
    "hardswish_of_sums",
    "hardswish_of_images",
    "bf16",
    "bf16_gelu",
    "bf16_residual",
    "bias",
    "bias_of_batches",
    "gelu",
    "gelu_by_tanh",
    "silu",
    "residual",
    "one_row",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_eager(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize("name", ["block", "shortcut", "scale", "bias_of_batches"])
def test_the_interpreter_agrees(name):
    function, inputs = CASES[name]
    mine = interpret(fuse(lowered(function, *inputs)), inputs)
    torch.testing.assert_close(mine, as_tuple(function(*inputs)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_no_loop_is_left(name):
    function, inputs = CASES[name]
    assert not [step for step in fuse(lowered(function, *inputs)).steps if isinstance(step, Kernel)]


def test_float16_is_multiplied_in_single_precision():
    function, inputs = CASES["f16_silu"]
    (call,) = (step for step in fuse(lowered(function, *inputs)).steps if isinstance(step, LibraryCall))
    assert {view.buffer.dtype for view in (*call.inputs, *call.outputs)} == {"f32"}


def test_a_sum_in_half_precision_is_kept_half_way():
    function, inputs = CASES["bf16_then_sin"]
    call, kernel = fuse(lowered(function, *inputs)).steps
    assert [each.operation for each in call.epilogue] == ["add"]
    assert [buffer.dtype for buffer in (*kernel.read, *kernel.written)] == ["bf16", "bf16"]


def test_batch_norm_becomes_one_scale_and_one_shift():
    function, inputs = CASES["block"]
    steps = fuse(lowered(function, *inputs)).steps
    (call,) = [step for step in steps if isinstance(step, LibraryCall)]
    assert [each.operation for each in call.epilogue] == ["mul", "add", "add", "relu"]


def test_of_two_convolutions_the_second_adds_the_first():
    function, inputs = CASES["shortcut"]
    calls = [step for step in fuse(lowered(function, *inputs)).steps if isinstance(step, LibraryCall)]
    assert sorted([each.operation for each in call.epilogue] for call in calls) == [[], ["mul", "add", "relu"]]


@pytest.mark.parametrize("activation", [F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.hardswish])
def test_nan_stays_nan(tmp_path, activation):
    x, w = torch.eye(16), torch.randn(16, 16)
    w[3, 5] = float("nan")
    case = {"f": (lambda x, w: activation(x @ w), [x, w])}
    torch.testing.assert_close(open_cases(case, tmp_path)["f"](x, w)[0], activation(x @ w), equal_nan=True)


def test_a_value_that_two_read_stays_in_memory():
    program = fuse(lowered(lambda x, w: ((x @ w).sin(), (x @ w).softmax(0)), torch.randn(5, 7), torch.randn(7, 6)))
    assert all(not step.epilogue for step in program.steps if isinstance(step, LibraryCall))
