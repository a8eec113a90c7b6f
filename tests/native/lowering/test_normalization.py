"""Normalization layers and their gradients, and how few kernels they take."""

import pytest
import torch

from precast.native.loops.program import Kernel
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten


def positive(*shape, seed=0):
    return floats(*shape, seed=seed).abs() + 0.5


def layer_norm_backward(dy, x, w, mask=(True, True, True)):
    _, mean, rstd = aten.native_layer_norm(x, [9], w, w, 1e-5)
    return [each for each in aten.native_layer_norm_backward(dy, x, [9], mean, rstd, w, w, mask) if each is not None]


def group_norm_backward(dy, x, w):
    _, mean, rstd = aten.native_group_norm(x, w, w, 2, 6, 20, 3, 1e-5)
    return aten.native_group_norm_backward(dy, x, mean, rstd, w, 2, 6, 20, 3, [True, True, True])


def batch_norm_backward(dy, x, w, training, mask=(True, True, True)):
    mean, rstd = x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    found = aten.native_batch_norm_backward(dy, x, w, mean, rstd.abs(), mean, rstd, training, 1e-5, mask)
    return [each for each, is_wanted in zip(found, mask, strict=True) if is_wanted]


IMAGE = (2, 6, 4, 5)
CASES = {
    "layer_norm": (lambda x, w, b: aten.native_layer_norm(x, [9], w, b, 1e-5), [floats(4, 9), positive(9), floats(9)]),
    "layer_norm_plain": (lambda x: aten.native_layer_norm(x, [3, 9], None, None, 1e-5), [floats(4, 3, 9) + 50]),
    "layer_norm_wide": (lambda x, w, b: aten.native_layer_norm(x, [70], w, b, 1e-5),
                        [floats(5, 70), positive(70), floats(70)]),
    "layer_norm_bf16": (
        lambda x, w, b: aten.native_layer_norm(x, [9], w, b, 1e-5)[0],
        [floats(4, 9, dtype=torch.bfloat16), positive(9).bfloat16(), floats(9, dtype=torch.bfloat16)]),
    "layer_norm_f64": (lambda x: aten.native_layer_norm(x, [9], None, None, 1e-5), [floats(4, 9, dtype=torch.float64)]),
    "layer_norm_empty": (lambda x: aten.native_layer_norm(x, [9], None, None, 1e-5)[0], [floats(0, 9)]),
    "layer_norm_backward": (layer_norm_backward, [floats(4, 9), floats(4, 9, seed=1), positive(9)]),
    "layer_norm_backward_of_weight": (
        lambda dy, x, w: layer_norm_backward(dy, x, w, (False, True, False)),
        [floats(4, 9), floats(4, 9, seed=1), positive(9)]),
    "group_norm": (
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 20, 3, 1e-5), [floats(*IMAGE), positive(6), floats(6)]),
    "group_norm_of_rows": (
        lambda x, w, b: aten.native_group_norm(x, w, b, 4, 6, 1, 3, 1e-5), [floats(4, 6), positive(6), floats(6)]),
    "group_norm_plain": (lambda x: aten.native_group_norm(x, None, None, 2, 6, 20, 2, 1e-5), [floats(*IMAGE)]),
    "group_norm_backward": (group_norm_backward, [floats(*IMAGE), floats(*IMAGE, seed=1), positive(6)]),
    "batch_norm": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5),
        [floats(*IMAGE), positive(6), floats(6), floats(6, seed=2), positive(6, seed=3)]),
    "batch_norm_frozen": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5),
        [floats(*IMAGE), positive(6), floats(6), floats(6, seed=2), positive(6, seed=3)]),
    "batch_norm_functional_frozen": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, False, 0.1, 1e-5)[0],
        [floats(*IMAGE), positive(6), floats(6), floats(6, seed=2), positive(6, seed=3)]),
    "batch_norm_without_statistics": (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), [floats(*IMAGE)]),
    "batch_norm_of_rows": (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), [floats(7, 3)]),
    "batch_norm_backward": (
        lambda dy, x, w: batch_norm_backward(dy, x, w, True), [floats(*IMAGE), floats(*IMAGE, seed=1), positive(6)]),
    "batch_norm_backward_of_weight": (
        lambda dy, x, w: batch_norm_backward(dy, x, w, True, (False, True, True)),
        [floats(*IMAGE), floats(*IMAGE, seed=1), positive(6)]),
    "batch_norm_backward_frozen": (
        lambda dy, x, w: batch_norm_backward(dy, x, w, False), [floats(*IMAGE), floats(*IMAGE, seed=1), positive(6)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_normalization_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize(
    ("name", "count"), [("layer_norm", 1), ("layer_norm_backward", 4), ("batch_norm", 2), ("group_norm", 2)]
)
def test_normalization_takes_few_kernels(name, count):
    function, inputs = CASES[name]
    program = fuse(lowered(function, *inputs))
    assert len([step for step in program.steps if isinstance(step, Kernel)]) <= count
