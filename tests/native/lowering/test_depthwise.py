"""Depthwise convolutions, and what is done before and after them in the same pass, against eager and float64."""

import pytest
import torch
import torch.nn.functional as F

from precast.cache import Store
from precast.native.loops.interpreter import interpret
from precast.native.loops.program import LibraryCall
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.passes import fuse
from precast.runtime import open_library
from tests.native.lowering.cases import check_case, floats, open_cases
from tests.native.lowering.numbers import assert_right
from tests.native.lowering.pipeline import lowered, make_entry, open_entries


def last(*shape, seed=0):
    return floats(*shape, seed=seed).to(memory_format=torch.channels_last)


def convolved(stride=1, padding=1, before=lambda x: x, after=lambda x: x):
    """A depthwise convolution between two others: what lies between them is channels last, and ours to choose."""

    def function(x, enter, w, b):
        image = before(F.conv2d(x, enter))
        return after(F.conv2d(image, w, b, stride, padding, groups=w.shape[0])).sin()

    return function


def fed(stride=1, padding=1, before=lambda x: x, after=lambda x: x):
    """A depthwise convolution that comes first: no other call can take along what is done before it."""

    def function(x, w, b):
        return after(F.conv2d(before(x), w, b, stride, padding, groups=w.shape[0])).sin()

    return function


def first_operands(channels, height=9, width=10, kernel=(3, 3)):
    return [last(2, channels, height, width), floats(channels, 1, *kernel, seed=1), floats(channels, seed=2)]


def operands(channels, height=9, width=10, kernel=(3, 3), batch=2):
    shapes = (batch, 3, height, width), (channels, 3, 1, 1), (channels, 1, *kernel), (channels,)
    return [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)]


# Batch norm as it is at inference.
def normalized(x):
    channels = torch.arange(x.shape[1], dtype=x.dtype)
    return x * (channels + 1).rsqrt()[:, None, None] + channels.cos()[:, None, None]


ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "normalized": normalized, "normalized_relu6": lambda x: F.relu6(normalized(x)),
    "silu_twice": lambda x: F.silu(F.silu(x) * 2),
}  # fmt: skip
CASES = {
    **{f"channels_{count}": (convolved(), operands(count)) for count in (2, 8, 16, 24, 40, 64)},
    **{f"kernel_{kernel}_stride_{stride}": (convolved(stride, kernel // 2), operands(24, 23, 19, (kernel, kernel)))
       for kernel in (3, 5, 7) for stride in (1, 2)},
    **{f"padding_{padding}": (convolved(1, padding), operands(16)) for padding in (0, 2, 4)},
    "oblong": (convolved((3, 2), (1, 2)), operands(32, 11, 30, (2, 5))),
    "wide": (convolved(), operands(16, 4, 300)),
    "flat": (convolved(), operands(16, 1, 7)),
    "small": (convolved(1, 3), operands(16, 2, 1, (7, 7))),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, groups=16), [last(1, 16, 9, 9), floats(16, 1, 3, 3)]),
    "multiplied": (lambda x, w: F.conv2d(x, w, groups=16), [last(1, 16, 9, 9), floats(32, 1, 3, 3)]),
    "row_major": (lambda x, w: F.conv2d(x, w, groups=16), [floats(1, 16, 9, 9), floats(16, 1, 3, 3)]),
    "residual": (lambda x, e, w, b: F.conv2d(y := F.conv2d(x, e), w, b, padding=1, groups=24) * 2 + y, operands(24)),
    **{f"before_{name}": (convolved(before=function), operands(24)) for name, function in ACTIVATIONS.items()},
    **{f"first_{name}": (fed(before=function), first_operands(24)) for name, function in ACTIVATIONS.items()},
    **{f"first_{kernel}_by_{stride}": (fed(stride, kernel // 2, F.relu6), first_operands(40, 23, 19, (kernel, kernel)))
       for kernel in (3, 5, 7) for stride in (1, 2)},
    "first_wide": (fed(before=F.relu6), first_operands(16, 4, 300)),
    **{f"after_{name}": (convolved(after=function), operands(24)) for name, function in ACTIVATIONS.items()},
    "padded_by_itself": (convolved(2, 0, lambda x: F.pad(F.relu6(x), (0, 1, 0, 1)), F.relu6), operands(32, 12, 12)),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_computes_what_eager_does(model, name):
    check_case(model, name, CASES[name], sums=True)


def test_what_comes_before_and_after_goes_into_the_call():
    function, inputs = fed(before=F.relu6, after=F.relu6), first_operands(16)
    program = fuse(lowered(function, *inputs))
    call, _ = program.steps
    assert call.routine == "depthwise_convolution"
    assert [each.operation for each in call.prologue] == ["relu6"]
    assert [each.operation for each in call.epilogue] == ["add", "relu6"]
    assert [each.partition(":")[0] for each in call.origins] == ["hardtanh", "convolution"]
    torch.testing.assert_close(interpret(program, inputs)[0], function(*inputs))


def test_batch_norm_and_activation_before_become_the_prologue():
    def function(x, scale, shift, w):
        image = torch.ops.aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16)
        image = image.sort(dim=2).values.contiguous(memory_format=torch.channels_last)
        return F.conv2d(F.relu6(image * scale[:, None, None] + shift[:, None, None]), w, groups=16).sin()

    program = fuse(lowered(function, last(2, 16, 8, 8), floats(16), floats(16, seed=1), floats(16, 1, 3, 3)))
    calls = [step for step in program.steps if getattr(step, "routine", "") == "depthwise_convolution"]
    assert [each.operation for each in calls[-1].prologue] == ["mul", "add", "relu6"]


def test_what_others_read_too_stays_a_loop():
    def function(x, enter, w, b):
        image = F.relu6(F.conv2d(x, enter))
        return F.conv2d(image, w, b, padding=1, groups=16).sin(), image

    program = fuse(lowered(function, *operands(16)))
    assert not any(step.prologue for step in program.steps if isinstance(step, LibraryCall))


def test_the_convolution_before_takes_relu6_along():
    program = fuse(lowered(convolved(before=F.relu6), *operands(16, batch=1)))
    enter, call, _ = program.steps
    assert [each.operation for each in enter.epilogue] == ["relu6"]
    assert not call.prologue


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_goes_where_eager_takes_it(value, tmp_path):
    function = convolved(before=F.relu6, after=F.relu6)
    x, enter, w, b = operands(16, 8, 8)
    enter[:] = 0
    enter[:, 0] = 1
    x[0, 0, 3, 4] = value
    b[3] = value
    program = make_entry(lowered(function, x, enter, w, b))
    (ours,) = open_entries([program], tmp_path)["forward"](x, enter, w, b)
    assert torch.equal(ours.isnan(), function(x, enter, w, b).isnan())
    torch.testing.assert_close(ours, function(x, enter, w, b), equal_nan=True)


def test_any_batch_and_size(tmp_path):
    function = convolved(2, 1, F.relu6, F.relu6)
    program = make_entry(lowered(function, *operands(24), dynamic=True))
    model = open_entries([program], tmp_path)
    for batch, height, width in ((1, 7, 7), (3, 14, 9), (2, 30, 120)):
        inputs = operands(24, height, width, batch=batch)
        (ours,) = model["forward"](*inputs)
        assert_right(ours, function(*inputs), function(*(each.double() for each in inputs)), sums=True)


def test_threads_share_the_work(tmp_path):
    function = convolved(before=F.relu6, after=F.relu6)
    inputs = operands(16, 20, 20, batch=1)
    run = open_entries([make_entry(lowered(function, *inputs))], tmp_path)["forward"]
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results += run(*inputs)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_a_processor_without_wide_vectors_computes_the_same(tmp_path):
    function, inputs = fed(2, 1, lambda x: F.relu6(normalized(x).tanh() * 4), F.relu6), first_operands(24)
    entry = make_entry(lowered(function, *inputs))
    (call,) = (step for step in entry.program.steps if getattr(step, "routine", "") == "depthwise_convolution")
    assert call.prologue
    sources, store = generate([entry]), Store(tmp_path, limit=2**30)
    library = build(sources, store=store, extra_flags=["-march=x86-64", "-O1", "-Wno-psabi"])
    (ours,) = open_library(library.path, needs=library.needs)["forward"](*inputs)
    assert_right(ours, function(*inputs), function(*(each.double() for each in inputs)), sums=True)
